//! The process itself: the allocator that each of Berth's binaries names as its own, and gauges that are taken when they are read.
//!
//! jemalloc gives what is free back to the system also while a process idles, and can tell how much is in use: a leak shows in that
//! long before it shows in resident memory. Its settings are in `.cargo/config.toml`.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use tikv_jemalloc_ctl::{Access, AsName, Error, epoch, stats};
use tokio::runtime::Handle;

/// For the `#[global_allocator]` of a binary: tests of a library that run on small stacks of their own cannot have it.
pub use tikv_jemallocator::Jemalloc;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Free memory that threads keep for themselves, of all arenas; 4096 is jemalloc's `MALLCTL_ARENAS_ALL`.
const KEPT_BY_THREADS: &str = "stats.arenas.4096.tcache_bytes\0";

#[derive(Debug)]
struct Process;

/// Shows `berth_runtime_tasks` and `berth_allocated_bytes` of this process: the same names in every binary.
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix("berth");
    registry.register_collector(Box::new(Process));
    registry
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = [
            ("runtime_tasks", "Tasks of the runtime that are not over", tasks()),
            ("allocated_bytes", "Bytes of the heap that are in use", allocated_bytes().ok()),
        ];
        for (name, help, value) in gauges {
            // None is shown rather than a wrong one.
            let Some(value) = value.and_then(|value| i64::try_from(value).ok()) else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

/// Tasks that are not over, of the runtime that asks.
fn tasks() -> Option<usize> {
    Some(Handle::try_current().ok()?.metrics().num_alive_tasks())
}

/// Bytes that the program has asked for and not given back, as jemalloc rounds them.
fn allocated_bytes() -> Result<usize, Error> {
    // The figures are those of the last epoch.
    epoch::advance()?;
    let kept: usize = KEPT_BY_THREADS.name().read()?;
    Ok(stats::allocated::read()?.saturating_sub(kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;

    const LARGE: i64 = 64 * 1024 * 1024;

    fn shown(name: &str) -> Option<i64> {
        let mut text = String::new();
        encode(&mut text, &registry()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("berth_{name} ")))?;
        Some(line.parse().unwrap())
    }

    #[test]
    fn what_is_in_use_is_shown() {
        let before = shown("allocated_bytes").unwrap();
        let large = std::hint::black_box(vec![1_u8; usize::try_from(LARGE).unwrap()]);
        let during = shown("allocated_bytes").unwrap();
        assert!(during - before > LARGE / 2, "{before}, then {during}");
        drop(large);
        let after = shown("allocated_bytes").unwrap();
        assert!(during - after > LARGE / 2, "{during}, then {after}");
    }

    #[tokio::test]
    async fn tasks_that_are_not_over_are_shown() {
        assert_eq!(shown("runtime_tasks"), Some(0));
        let endless = tokio::spawn(std::future::pending::<()>());
        assert_eq!(shown("runtime_tasks"), Some(1));
        endless.abort();
        assert!(endless.await.unwrap_err().is_cancelled());
        assert_eq!(shown("runtime_tasks"), Some(0));
    }

    #[test]
    fn outside_of_a_runtime_there_are_no_tasks_to_show() {
        assert_eq!(shown("runtime_tasks"), None);
    }

    #[test]
    fn the_settings_are_those_of_small_containers() {
        let (arenas, decay): (u32, isize) =
            ("opt.narenas\0".name().read().unwrap(), "opt.dirty_decay_ms\0".name().read().unwrap());
        let in_background: bool = "opt.background_thread\0".name().read().unwrap();
        assert_eq!((arenas, decay, in_background), (2, 1_000, true));
    }
}
