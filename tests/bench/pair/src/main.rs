//! The `bench-pair` binary: one part of the bare pair, or the client.

use bench_pair::{Error, load, relay, tls};
use clap::{Parser, Subcommand};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use tikv_jemallocator::Jemalloc;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

/// That of Berth's binaries, so that it makes no difference between the two.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    part: Part,
    /// Port to listen on, on every address.
    #[arg(long, default_value_t = 8080, global = true)]
    port: u16,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Plain HTTP in, mutual TLS out.
    Front(Next),
    /// Mutual TLS in, plain HTTP out.
    Back(Next),
    /// The client.
    Load,
}

#[derive(Debug, clap::Args)]
struct Next {
    /// Where to.
    #[arg(long)]
    to: SocketAddr,
    /// Folder with tls.crt, tls.key and ca.crt.
    #[arg(long)]
    tls: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // One thread, as Berth's parts have unless they are told otherwise.
    let runtime = Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(Error::from).and_then(|runtime| runtime.block_on(run(args)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-pair: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Error> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, args.port)).await?;
    match args.part {
        Part::Front(next) => relay::front(listener, next.to, tls::configs(&next.tls)?.0.into()).await,
        Part::Back(next) => relay::back(listener, next.to, tls::configs(&next.tls)?.1.into()).await,
        Part::Load => load::serve(listener).await,
    }
}
