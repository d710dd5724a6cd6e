//! Gauges of objects, read from the stores when scraped: they are never off.

use crate::watch::Stores;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

struct Objects(Stores);

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Objects")
    }
}

/// Registers the gauges.
pub fn register(registry: &mut Registry, stores: &Stores) {
    registry.register_collector(Box::new(Objects(stores.clone())));
}

impl Collector for Objects {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauges = [
            ("berth_operator_sessions", "AgentSessions that exist", self.0.sessions.len()),
            ("berth_operator_servers", "McpServers that exist", self.0.servers.len()),
            ("berth_operator_pods", "Pool pods that exist", self.0.pods.len()),
        ];
        for (name, help, count) in gauges {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
