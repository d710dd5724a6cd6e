//! `make bench`: measures what Berth costs on a real cluster, beside what it is compared with in the same run, prints a table
//! and writes a file. It judges nothing: a machine that is busy has other figures, and their ratios are what counts.
//!
//! A new measure is a function that adds to the [`Report`], and a [`What`] to name it by.

// A harness that cannot go on says so by a panic, as the tests whose helpers it uses do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod hop;
mod memory;
mod pods;
mod report;
mod settle;
mod stats;
mod usage;

use berth_e2e::in_namespace;
use clap::{Parser, ValueEnum};
use report::Report;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Instant;

/// When the run began.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

#[derive(Debug, Parser)]
struct Args {
    /// What to measure; all by default.
    what: Vec<What>,
    /// Where the file goes.
    #[arg(long, default_value = "target/bench.json")]
    out: PathBuf,
    /// About how long calls are measured, in seconds.
    #[arg(long, env = "BERTH_BENCH_SECONDS", default_value_t = 90)]
    seconds: u64,
    /// Sessions whose memory is measured, in one sidecar.
    #[arg(long, env = "BERTH_BENCH_SESSIONS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(2..=1000))]
    sessions: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// A call through Berth, through the bare pair, and directly.
    Hop,
    /// Memory of idle and of connected sessions.
    Memory,
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    LazyLock::force(&BEGAN);
    let mut report = Report::default();
    for what in What::value_variants() {
        if !args.what.is_empty() && !args.what.contains(what) {
            continue;
        }
        let report = &mut report;
        // Boxed, as they hold much over their waits.
        match what {
            What::Hop => {
                let measured = |ns| async move { Box::pin(hop::measure(&ns, args.seconds, report)).await };
                in_namespace("bench-hop", measured).await;
            }
            What::Memory => {
                let measured =
                    |ns| async move { Box::pin(memory::measure(&ns, args.sessions, report)).await };
                in_namespace("bench-memory", measured).await;
            }
        }
    }
    print!("\n{}", report.table());
    std::fs::write(&args.out, report.json()).expect("the file can be written");
    println!("\nwritten to {}", args.out.display());
}

/// Tells how far the run is.
fn progress(text: &str) {
    eprintln!("[{:5.1} s] {text}", BEGAN.elapsed().as_secs_f32());
}
