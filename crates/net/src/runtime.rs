//! The threads of a process.

use std::io;
use tokio::runtime::{Builder, Runtime};

/// A runtime with so many threads that carry calls. A single one hands nothing over to others, which is what most calls cost
/// where there are more.
pub fn with_threads(threads: u16) -> io::Result<Runtime> {
    let mut builder = if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(threads.into()).enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::RuntimeFlavor;

    #[test]
    fn one_thread_is_the_callers_own() {
        for (threads, flavor) in [(1, RuntimeFlavor::CurrentThread), (2, RuntimeFlavor::MultiThread)] {
            let runtime = with_threads(threads).unwrap();
            assert_eq!(runtime.handle().runtime_flavor(), flavor);
            assert_eq!(runtime.metrics().num_workers(), usize::from(threads));
            runtime.block_on(async { tokio::time::sleep(std::time::Duration::ZERO).await });
        }
    }
}
