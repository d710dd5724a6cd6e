//! The binary `berth-gateway`: flags, logs, the end of the process.

use berth_gateway::{cli::Args, run};
use berth_net::process::Jemalloc;
use berth_net::{runtime, shutdown, telemetry};
use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::init(args.log_format);
    let runtime = runtime::with_threads(args.worker_threads);
    let ended = runtime.map_err(run::Error::Runtime).and_then(|runtime| {
        runtime.block_on(async {
            let shutdown = shutdown::on_signal().map_err(run::Error::Signal)?;
            run::run(args, shutdown).await
        })
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the gateway ends");
            ExitCode::FAILURE
        }
    }
}
