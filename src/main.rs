//! The operator of Berth: the effects around the decisions of `berth-plan`.

mod api_error;
mod background;
mod ca;
mod cli;
mod client;
mod context;
mod controller;
mod event;
#[cfg(test)]
mod fixture;
mod fleet;
mod metrics;
mod orphans;
mod run;
mod slots;
mod start;
mod trigger;
mod watch;

use clap::Parser;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let cli::Command::Run(options) =
        cli::Cli::parse_from(cli::with_default_command(std::env::args_os())).command;
    berth_net::telemetry::init(options.log_format);
    match Box::pin(run::run(options)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the operator cannot go on");
            ExitCode::FAILURE
        }
    }
}
