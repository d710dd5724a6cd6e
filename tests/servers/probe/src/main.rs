//! The `probe` binary: reads its few settings, listens, and ends on SIGTERM.

use std::{io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use probe::{Probe, Settings, accept, ports::Listen};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// An MCP server for tests that keeps books of what it saw.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Port to listen on, on every address.
    #[arg(long, env = "PORT", default_value_t = 8080)]
    port: u16,
    /// Address to listen on.
    #[arg(long, env = "PROBE_ADDRESS", default_value = "0.0.0.0")]
    address: std::net::IpAddr,
    /// Pause between keep-alive comments on a GET stream.
    #[arg(long, env = "PROBE_KEEP_ALIVE_MS", default_value_t = 15_000)]
    keep_alive_ms: u64,
    /// More header names whose values the books show in clear; all others are shown as a digest.
    #[arg(long = "show-header", env = "PROBE_SHOW_HEADERS", value_delimiter = ',')]
    show_headers: Vec<String>,
    /// More ports, as `plain=8081,good=8443`; kinds are plain, good, expired, wrong-name, no-intermediate and silent.
    #[arg(long = "listen", env = "PROBE_PORTS", value_delimiter = ',')]
    ports: Vec<Listen>,
    /// More names and addresses for the certificates of the TLS ports.
    #[arg(long = "tls-name", env = "PROBE_TLS_NAMES", value_delimiter = ',')]
    tls_names: Vec<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("probe: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> io::Result<()> {
    let mut settings = Settings {
        keep_alive: Duration::from_millis(args.keep_alive_ms.max(1)),
        show_headers: args.show_headers.iter().map(|name| name.trim().to_ascii_lowercase()).collect(),
        ..Settings::default()
    };
    settings.tls_names.extend(args.tls_names);
    let probe = Probe::new(settings)?;
    // Both handlers are in place before the port opens: as process 1 of a container, a signal
    // without a handler would be lost.
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let listener = TcpListener::bind(SocketAddr::new(args.address, args.port)).await?;
    eprintln!("probe: listening on {}", listener.local_addr()?);
    for Listen { port, number } in args.ports {
        let listener = TcpListener::bind(SocketAddr::new(args.address, number)).await?;
        eprintln!("probe: listening on {} ({port})", listener.local_addr()?);
        tokio::spawn(accept::serve_port(port, listener, Arc::clone(&probe)));
    }
    let stop = probe.shutdown.clone();
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
        stop.cancel();
    });
    accept::serve(listener, probe).await;
    eprintln!("probe: ended");
    Ok(())
}
