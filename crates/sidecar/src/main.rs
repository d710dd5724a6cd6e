//! The `berth-sidecar` binary.

use berth_net::process::Jemalloc;
use berth_net::{runtime, telemetry};
use berth_sidecar::args::Args;
use berth_sidecar::run::{RunError, run};
use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::init(args.log_format);
    let runtime = runtime::with_threads(args.worker_threads);
    let ended = runtime.map_err(RunError::Runtime).and_then(|runtime| runtime.block_on(run(args)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the sidecar cannot run");
            ExitCode::FAILURE
        }
    }
}
