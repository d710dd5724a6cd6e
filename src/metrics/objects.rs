//! Gauges of objects, read from the stores when scraped: they are never off. Only the leader shows them, so that a sum over
//! all replicas is right.

use crate::lead::Lead;
use crate::watch::Stores;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

struct Objects {
    stores: Stores,
    lead: Lead,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Objects")
    }
}

/// Registers the gauges.
pub fn register(registry: &mut Registry, stores: &Stores, lead: &Lead) {
    registry.register_collector(Box::new(Objects { stores: stores.clone(), lead: lead.clone() }));
}

impl Collector for Objects {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let leads = self.lead.term().is_ok();
        let of_leader = [
            ("berth_operator_sessions", "AgentSessions that exist", self.stores.sessions.len()),
            ("berth_operator_servers", "McpServers that exist", self.stores.servers.len()),
            ("berth_operator_pods", "Pool pods that exist", self.stores.pods.len()),
        ];
        let shown = of_leader.into_iter().filter(|_| leads);
        let gauges = [("berth_operator_leading", "Whether this process leads", usize::from(leads))]
            .into_iter()
            .chain(shown);
        for (name, help, count) in gauges {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
