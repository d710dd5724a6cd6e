//! Gauges that fall back by themselves.

use prometheus_client::metrics::gauge::Gauge;

/// One unit of a gauge, given back when dropped: on every path, a panic too.
#[derive(Debug)]
pub struct Held(Gauge);

impl Held {
    /// Takes one unit of `gauge`.
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_given_back_when_dropped() {
        let gauge = Gauge::default();
        let held = (Held::new(&gauge), Held::new(&gauge));
        assert_eq!(gauge.get(), 2);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }
}
