//! The operator of Berth: the effects around the decisions of `berth-plan`.

mod api_error;
mod background;
mod ca;
mod check;
mod cli;
mod client;
mod context;
mod controller;
mod event;
#[cfg(test)]
mod fixture;
mod fleet;
mod follow;
mod found_good;
mod gateways;
mod lead;
#[cfg(test)]
mod memory_api;
mod metrics;
mod name_some;
mod namespace;
mod orphans;
mod pages;
mod run;
mod slots;
mod start;
mod trigger;
mod uninstall;
mod watch;

use crate::context::Clock;
use berth_net::process::Jemalloc;
use clap::Parser;
use kube::Client;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = cli::Cli::parse_from(cli::with_default_command(std::env::args_os()));
    let outcome: Result<(), Box<dyn std::error::Error>> = match cli.command {
        cli::Command::Run(options) => {
            berth_net::telemetry::init(options.log_format);
            Box::pin(run::run(options)).await.map_err(|error| {
                tracing::error!(%error, "the operator cannot go on");
                error.into()
            })
        }
        cli::Command::Uninstall(options) => {
            once(async |client: &Client| {
                uninstall::run(&options, client, Clock::SYSTEM).await.map_err(Into::into)
            })
            .await
        }
        cli::Command::Check(options) => {
            once(async |client: &Client| {
                check::run(&options, client, Clock::SYSTEM).await.map_err(Into::into)
            })
            .await
        }
    };
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A command that runs once, for people: what goes wrong is a line on standard error.
async fn once(
    command: impl AsyncFnOnce(&Client) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let outcome = match client::single().await {
        Ok(client) => command(&client).await,
        Err(error) => Err(error.into()),
    };
    outcome.inspect_err(|error| eprintln!("error: {error}"))
}
