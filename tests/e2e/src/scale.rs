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

/// Random choices that the seed fixes.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of one topic.
    pub fn new(topic: u32) -> Self {
        Self((u64::from(seed()) << 32) | u64::from(topic))
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
