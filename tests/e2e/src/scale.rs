//! How much of a count is run, and from where a test picks its random choices: `make test` runs a part of what `make soak` runs.

use std::fmt::Display;

/// `full` under `BERTH_SOAK=1`, else `short`.
pub fn rounds(short: u32, full: u32) -> u32 {
    if std::env::var_os("BERTH_SOAK").is_some() { full } else { short }
}

/// The seed of all choices: `BERTH_SEED`, or 0.
pub fn seed() -> u32 {
    std::env::var("BERTH_SEED").map_or(0, |seed| seed.parse().expect("BERTH_SEED is a number"))
}

/// Prints a figure of the test that runs; `make soak` gathers them.
pub fn figure(name: &str, value: impl Display) {
    eprintln!("\nfigure {name}: {value}");
}
