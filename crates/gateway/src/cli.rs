//! Flags of the binary; each can come from the environment too.

use crate::gateway::Settings;
use berth_net::telemetry::LogFormat;
use clap::Parser;
use http::uri::{Authority, Uri};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Authenticates, authorizes and streams MCP requests to the sidecar that holds the session.
#[derive(Clone, Debug, Parser)]
#[command(name = "berth-gateway", version)]
pub struct Args {
    /// Where MCP clients are served, plain HTTP.
    #[arg(long, env = "BERTH_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Where /livez, /readyz and /metrics are served, plain HTTP.
    #[arg(long, env = "BERTH_ADMIN_LISTEN", default_value = "0.0.0.0:8081")]
    pub admin_listen: SocketAddr,
    /// Threads that carry calls. Each call that goes from one to another pays for it, so give more only where one is kept busy.
    #[arg(long, env = "BERTH_WORKER_THREADS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub worker_threads: u16,
    /// Folder with tls.crt, tls.key and ca.crt: the client identity shown to sidecars.
    #[arg(long, env = "BERTH_TLS_DIR", default_value = "/etc/berth/tls")]
    pub tls_dir: PathBuf,
    /// Namespace of the operator's Lease, which says where its leader tells of placements. None given: sessions are
    /// placed by their status alone, which comes a moment later.
    #[arg(long, env = "BERTH_NAMESPACE")]
    pub operator_namespace: Option<String>,
    /// Audience that a ServiceAccount token must be for.
    #[arg(long, env = "BERTH_AUDIENCE", default_value = "berth")]
    pub audience: String,
    /// How long a call waits for its session to be placed before it gets 503.
    #[arg(long, env = "BERTH_PLACEMENT_WAIT", default_value = "10s", value_parser = berth_api::Duration::read)]
    pub placement_wait: Duration,
    /// How long a session that is not known is looked for before the call gets 404: it may have been made just now.
    #[arg(long, env = "BERTH_SETTLE", default_value = "1s", value_parser = berth_api::Duration::read)]
    pub settle: Duration,
    /// How long calls are still accepted once the gateway is asked to end, since routes to it last a moment longer than its
    /// readiness; at most 1m.
    #[arg(long, env = "BERTH_SHUTDOWN_DELAY", default_value = "3s", value_parser = at_most::<60>)]
    pub shutdown_delay: Duration,
    /// How long running calls may go on after that; at most 1h.
    #[arg(long, env = "BERTH_DRAIN", default_value = "20s", value_parser = at_most::<3600>)]
    pub drain: Duration,
    /// Most client connections at once; more wait to be accepted.
    #[arg(long, env = "BERTH_MAX_CONNECTIONS", default_value_t = 10_000)]
    pub max_connections: usize,
    /// Most calls at once, streams that listen among them; more get 429. Fewer than --max-connections, so that there are
    /// connections left to say so.
    #[arg(long, env = "BERTH_MAX_CALLS", default_value_t = 8_000)]
    pub max_calls: usize,
    /// Most MiB of request bodies that are held at once, by all calls together; more get 429 after a second. While a body
    /// arrives it can take twice its length.
    #[arg(long, env = "BERTH_BODY_BUDGET_MIB", default_value_t = 128, value_parser = clap::value_parser!(u16).range(4..))]
    pub body_budget_mib: u16,
    /// Origin that browsers may send besides localhost and the own one of an allowed host, as in `https://app.example`;
    /// repeatable.
    #[arg(long = "allowed-origin", env = "BERTH_ALLOWED_ORIGINS", value_delimiter = ',', value_parser = origin)]
    pub allowed_origins: Vec<String>,
    /// Host that requests may name, without port; repeatable. None given: any, and then no page but those of localhost and
    /// of the allowed origins may call, since a rebound name would be its own host.
    #[arg(long = "allowed-host", env = "BERTH_ALLOWED_HOSTS", value_delimiter = ',', value_parser = host)]
    pub allowed_hosts: Vec<String>,
    /// Form of the log lines: json or text.
    #[arg(long, env = "BERTH_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
}

impl Args {
    /// What requests are handled by.
    pub fn settings(&self) -> Settings {
        Settings {
            placement_wait: self.placement_wait,
            settle: self.settle,
            max_calls: self.max_calls,
            body_budget: usize::from(self.body_budget_mib) * 1024 * 1024,
            allowed_origins: self.allowed_origins.clone(),
            allowed_hosts: self.allowed_hosts.clone(),
            ..Settings::default()
        }
    }
}

/// A duration in the text form that the API uses, with a greatest one.
fn at_most<const SECONDS: u64>(text: &str) -> Result<Duration, String> {
    let (given, most) = (berth_api::Duration::read(text)?, Duration::from_secs(SECONDS));
    if given > most { Err(format!("{text:?} is longer than {SECONDS}s; write less")) } else { Ok(given) }
}

/// An origin as browsers send it.
fn origin(text: &str) -> Result<String, String> {
    let written = |uri: &Uri| Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?));
    let as_sent = text.parse().ok().and_then(|uri| written(&uri));
    match as_sent.filter(|origin| origin.eq_ignore_ascii_case(text)) {
        Some(origin) => Ok(origin),
        None => Err(format!("{text:?} is no origin; write it like https://app.example")),
    }
}

/// A host as it stands in a URL, without its port.
fn host(text: &str) -> Result<String, String> {
    match text.parse::<Authority>() {
        Ok(authority) if authority.host() == text => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no host; write it like mcp.example, without a port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_form_that_the_api_uses() {
        let args = Args::try_parse_from(["berth-gateway", "--placement-wait", "1m30s"]).unwrap();
        assert_eq!(args.settings().placement_wait, Duration::from_secs(90));
        let refused = Args::try_parse_from(["berth-gateway", "--placement-wait", "abc"]).unwrap_err();
        assert!(refused.to_string().contains("--placement-wait"), "{refused}");
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let parse = |flag: &str| Args::try_parse_from(["berth-gateway", flag]);
        assert_eq!(parse("--drain=1h").unwrap().drain, Duration::from_hours(1));
        assert_eq!(
            parse("--body-budget-mib=4").unwrap().settings().body_budget,
            Settings::default().body_max
        );
        for flag in [
            "--drain=3601s",
            "--shutdown-delay=61s",
            "--body-budget-mib=3",
            "--allowed-origin=https://a/",
            "--allowed-origin=a.example",
            "--allowed-origin=*",
            "--allowed-host=a.example:8080",
            "--allowed-host=https://a.example",
            "--allowed-host=u@a.example",
            "--allowed-host=",
        ] {
            let refused = parse(flag).unwrap_err().to_string();
            assert!(refused.contains(flag.split('=').next().unwrap()), "{refused}");
        }
    }

    #[test]
    fn origins_and_hosts_may_be_repeated() {
        let args = Args::try_parse_from([
            "berth-gateway",
            "--allowed-origin",
            "https://a",
            "--allowed-origin",
            "https://b",
        ])
        .unwrap();
        assert_eq!(args.settings().allowed_origins, ["https://a", "https://b"]);
        assert!(args.settings().allowed_hosts.is_empty());
        let args = Args::try_parse_from(["berth-gateway", "--allowed-host", "a.example,[::1]"]).unwrap();
        assert_eq!(args.settings().allowed_hosts, ["a.example", "[::1]"]);
    }
}
