//! The binary `berth-gateway`: flags, logs, the end of the process.

use berth_gateway::{cli::Args, run};
use berth_net::{shutdown, telemetry};
use clap::Parser;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::init(args.log_format);
    let ended = match shutdown::on_signal() {
        Ok(shutdown) => run::run(args, shutdown).await,
        Err(error) => Err(run::Error::Signal(error)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the gateway ends");
            ExitCode::FAILURE
        }
    }
}
