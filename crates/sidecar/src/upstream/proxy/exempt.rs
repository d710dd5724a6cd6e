//! Hosts that are reached without a proxy. Pure.

use crate::upstream::Host;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The rules; any one is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Exempt {
    rules: Vec<Rule>,
    not_understood: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    hosts: Hosts,
    /// Any without.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    /// A name and all below it.
    Domain(String),
    /// All below a name, and not itself.
    Below(String),
    /// Addresses that begin like this one.
    Network(IpAddr, u8),
}

impl Exempt {
    /// The rules of `list`, and those that always hold: this machine, and the cluster with its own domain.
    pub(super) fn parse(list: &str, cluster_domain: Option<&str>) -> Self {
        let always = [
            Hosts::Domain("localhost".to_owned()),
            Hosts::Network(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
            Hosts::Network(Ipv6Addr::LOCALHOST.into(), 128),
            Hosts::Below("svc".to_owned()),
            Hosts::Below("svc.cluster.local".to_owned()),
        ];
        let domain = cluster_domain.map(|domain| Hosts::Below(normal(domain)));
        let always = always.into_iter().chain(domain).map(|hosts| Rule { hosts, port: None });
        let mut exempt = Self { rules: always.collect(), not_understood: Vec::new() };
        for entry in list.split([',', ' ', '\t', '\n']).filter(|entry| !entry.is_empty()) {
            match Rule::parse(entry) {
                Some(rule) => exempt.rules.push(rule),
                None => exempt.not_understood.push(entry.to_owned()),
            }
        }
        exempt
    }

    /// Entries of the list that are no rules.
    pub(super) fn not_understood(&self) -> &[String] {
        &self.not_understood
    }

    /// Whether `host` is reached directly at `port`.
    pub(super) fn holds(&self, host: &Host, port: u16) -> bool {
        let name = match host {
            Host::Name(name) => normal(name),
            Host::Address(address) => {
                let holds = |rule: &Rule| rule.has_port(port) && rule.hosts.has_address(*address);
                return self.rules.iter().any(holds);
            }
        };
        // A name without a dot is one of the pod's own namespace: no proxy could resolve it.
        !name.contains('.') || self.rules.iter().any(|rule| rule.has_port(port) && rule.hosts.has_name(&name))
    }
}

impl Rule {
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self { hosts: Hosts::All, port: None });
        }
        if let Some((address, bits)) = entry.split_once('/') {
            let address: IpAddr = address.parse().ok()?;
            let bits: u8 = bits.parse().ok()?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            return (bits <= most).then_some(Self { hosts: Hosts::Network(address, bits), port: None });
        }
        if let Ok(address) = entry.parse::<IpAddr>() {
            return Some(Self { hosts: Hosts::one(address), port: None });
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (entry, None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Some(Self { hosts: Hosts::one(address), port });
        }
        let below = host.strip_prefix("*.").or_else(|| host.strip_prefix('.'));
        let name = normal(below.unwrap_or(host));
        let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(fits) {
            return None;
        }
        let hosts = if below.is_some() { Hosts::Below(name) } else { Hosts::Domain(name) };
        Some(Self { hosts, port })
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|wanted| wanted == port)
    }
}

impl Hosts {
    fn one(address: IpAddr) -> Self {
        Self::Network(address, if address.is_ipv4() { 32 } else { 128 })
    }

    fn has_name(&self, name: &str) -> bool {
        let is_below = |domain: &str| name.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        match self {
            Self::All => true,
            Self::Domain(domain) => name == domain || is_below(domain),
            Self::Below(domain) => is_below(domain),
            Self::Network(..) => false,
        }
    }

    fn has_address(&self, address: IpAddr) -> bool {
        match (self, address.to_canonical()) {
            (Self::All, _) => true,
            (Self::Network(IpAddr::V4(network), bits), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            (Self::Network(IpAddr::V6(network), bits), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(*bits)).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

/// A name as it is compared: without its final dot, and in lower case.
fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// The cluster's domain, as the `search` line of a pod's `resolv.conf` tells it: `default.svc.k8s.corp svc.k8s.corp k8s.corp`.
pub(super) fn cluster_domain<'a>(resolv_conf: &'a str) -> Option<&'a str> {
    let domains = |line: &'a str| {
        let rest = line.trim().strip_prefix("search")?;
        rest.starts_with([' ', '\t']).then_some(rest)
    };
    let search = resolv_conf.lines().filter_map(domains).next_back()?;
    search
        .split_whitespace()
        .find_map(|domain| domain.strip_prefix("svc."))
        .filter(|domain| !domain.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        text.parse().map_or(Host::Name(text.to_owned()), Host::Address)
    }

    fn direct(list: &str, name: &str, port: u16) -> bool {
        Exempt::parse(list, Some("k8s.corp")).holds(&host(name), port)
    }

    #[test]
    fn the_cluster_and_this_machine_are_always_reached_directly() {
        for name in [
            "localhost",
            "LOCALHOST.",
            "127.0.0.1",
            "127.9.8.7",
            "::1",
            "::ffff:127.0.0.1",
            "x.ns.svc",
            "X.ns.SVC",
            "x.ns.svc.cluster.local",
            "x.ns.svc.cluster.local.",
            "x.ns.svc.k8s.corp",
            "x",
        ] {
            assert!(direct("", name, 80), "{name}");
        }
        for name in [
            "mcp.example.com",
            "svc.example.com",
            "notsvc",
            "x.notsvc",
            "cluster.local.example.com",
            "8.8.8.8",
            "::2",
        ] {
            assert_eq!(direct("", name, 443), !name.contains(['.', ':']), "{name}");
        }
    }

    #[test]
    fn names_suffixes_addresses_and_networks_are_understood_in_any_case_and_with_ports() {
        for (list, name, port, wanted) in [
            ("*", "mcp.example.com", 443, true),
            ("*", "8.8.8.8", 443, true),
            ("example.com", "example.com", 443, true),
            ("example.com", "MCP.Example.com", 443, true),
            ("Example.COM", "mcp.example.com.", 443, true),
            ("example.com", "notexample.com", 443, false),
            (".example.com", "mcp.example.com", 443, true),
            (".example.com", "example.com", 443, false),
            ("*.example.com", "a.b.example.com", 443, true),
            ("a.test, example.com b.test", "example.com", 443, true),
            ("example.com:8443", "example.com", 8443, true),
            ("example.com:8443", "example.com", 443, false),
            ("10.0.0.0/8", "10.200.1.2", 80, true),
            ("10.0.0.0/8", "11.0.0.1", 80, false),
            ("10.1.2.3/0", "11.0.0.1", 80, true),
            ("10.0.0.0/8", "::ffff:10.0.0.1", 80, true),
            ("fd00::/8", "fd12::1", 80, true),
            ("fd00::/8", "fe80::1", 80, false),
            ("192.0.2.7", "192.0.2.7", 80, true),
            ("192.0.2.7:81", "192.0.2.7", 80, false),
            ("[2001:db8::1]:80", "2001:db8::1", 80, true),
            ("2001:db8::1", "2001:db8::1", 80, true),
            ("10.0.0.0/8", "ten.example.com", 80, false),
        ] {
            assert_eq!(direct(list, name, port), wanted, "{list:?} {name} {port}");
        }
    }

    #[test]
    fn what_is_no_rule_is_told_and_changes_nothing() {
        let exempt = Exempt::parse("10.0.0.0/99,example.com:x,ok.test,a/b", None);
        assert_eq!(exempt.not_understood(), ["10.0.0.0/99", "example.com:x", "a/b"]);
        assert!(exempt.holds(&host("ok.test"), 80) && !exempt.holds(&host("example.com"), 80));
    }

    #[test]
    fn the_clusters_domain_is_that_of_the_search_line() {
        let text = "nameserver 10.96.0.10\nsearch demo.svc.k8s.corp svc.k8s.corp k8s.corp\noptions ndots:5\n";
        assert_eq!(cluster_domain(text), Some("k8s.corp"));
        assert_eq!(cluster_domain("search corp.example\n"), None);
        assert_eq!(cluster_domain("searching svc.a\n"), None);
        assert_eq!(cluster_domain(""), None);
    }
}
