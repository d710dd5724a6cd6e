//! The `berth-sidecar` binary.

use berth_net::telemetry;
use berth_sidecar::args::Args;
use berth_sidecar::run::run;
use clap::Parser;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::init(args.log_format);
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the sidecar cannot run");
            ExitCode::FAILURE
        }
    }
}
