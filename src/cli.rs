//! The command line.

use berth_net::telemetry::LogFormat;
use berth_plan::server::build::{Proxy, Sidecar};
use berth_plan::server::network::Callers;
use clap::{ArgAction, Args, Parser, Subcommand};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Manages MCP connections as Kubernetes resources.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator (the default).
    Run(Options),
    /// End every session and remove what the operator made; the chart runs this before it is uninstalled.
    Uninstall(crate::uninstall::Options),
    /// Check that an install works; `helm test` runs this.
    Check(crate::check::Options),
}

/// The arguments with `run` put in where no command is named.
pub fn with_default_command(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let first = args.get(1).map(|arg| arg.to_string_lossy().into_owned());
    let names_none =
        first.is_none_or(|arg| arg.starts_with('-') && !["-h", "--help", "-V", "--version"].contains(&&*arg));
    if names_none {
        args.insert(1.min(args.len()), "run".into());
    }
    args
}

/// Settings of the operator.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Namespace of the operator: its CA and the gateway's certificate live there.
    #[arg(long, env = "BERTH_NAMESPACE")]
    pub namespace: String,
    /// Image that pool pods run the sidecar from.
    #[arg(long, env = "BERTH_SIDECAR_IMAGE")]
    pub sidecar_image: String,
    /// Proxy through which sidecars reach `https` upstreams, such as `http://proxy.example:3128`; empty means none. The operator itself
    /// never goes through it.
    #[arg(long, env = "BERTH_SIDECAR_HTTPS_PROXY", default_value = "", value_parser = proxy)]
    pub sidecar_https_proxy: String,
    /// The same for `http` upstreams.
    #[arg(long, env = "BERTH_SIDECAR_HTTP_PROXY", default_value = "", value_parser = proxy)]
    pub sidecar_http_proxy: String,
    /// Hosts that sidecars reach without a proxy, beside those of the cluster: names, .suffixes, addresses and CIDRs, with commas
    /// between them.
    #[arg(long, env = "BERTH_SIDECAR_NO_PROXY", default_value = "")]
    pub sidecar_no_proxy: String,
    /// Base of the URLs that sessions show in their status.
    #[arg(long, env = "BERTH_GATEWAY_URL")]
    pub gateway_url: String,
    /// Name of this pod: its identity in the election of the leader.
    #[arg(long, env = "BERTH_POD_NAME")]
    pub pod_name: String,
    /// Address of this pod, where gateways reach it while it leads.
    #[arg(long, env = "BERTH_POD_IP")]
    pub pod_ip: IpAddr,
    /// Address where gateways are served while this process leads, mutual TLS only.
    #[arg(long, env = "BERTH_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// How long the others wait for a leader that renews its Lease no more: 5s to 5m.
    #[arg(long, env = "BERTH_LEASE_DURATION", default_value = "15s", value_parser = lease_duration)]
    pub lease_duration: Duration,
    /// Keep a network policy for each pool, so that only operator and gateways reach the port for calls and control.
    #[arg(long, env = "BERTH_NETWORK_POLICIES", default_value_t = true, action = ArgAction::Set)]
    pub network_policies: bool,
    /// Labels by which those policies know the pods of operator and gateways, which are in the operator's namespace.
    #[arg(
        long,
        env = "BERTH_PEER_LABELS",
        default_value = "app.kubernetes.io/part-of=berth",
        value_delimiter = ',',
        value_parser = label
    )]
    pub peer_labels: Vec<(String, String)>,
    /// Address of health and metrics.
    #[arg(long, env = "BERTH_ADMIN_LISTEN", default_value = "0.0.0.0:8081")]
    pub admin_listen: SocketAddr,
    /// Form of the log lines: json or text.
    #[arg(long, env = "BERTH_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
}

impl Options {
    /// What sidecars are made with.
    pub fn sidecar(&self) -> Sidecar {
        let proxy = Proxy {
            https: self.sidecar_https_proxy.clone(),
            http: self.sidecar_http_proxy.clone(),
            no: self.sidecar_no_proxy.clone(),
        };
        Sidecar { image: self.sidecar_image.clone(), proxy }
    }

    /// Who may reach sidecars, when network policies are wanted.
    pub fn callers(&self) -> Option<Callers> {
        let labels = self.peer_labels.iter().cloned().collect();
        self.network_policies.then(|| Callers { namespace: self.namespace.clone(), labels })
    }
}

/// The URL of a proxy, or nothing. It never shows whole in an error: it may hold a password.
fn proxy(text: &str) -> Result<String, String> {
    let wrong =
        |problem: &str| Err(format!("the URL of a proxy {problem}; write it like http://proxy.example:3128"));
    if text.is_empty() {
        return Ok(String::new());
    }
    let Ok(url) = text.parse::<http::Uri>() else { return wrong("is not one") };
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return wrong("must not hold a user or password, since it is shown in the spec of pods");
    }
    match url.scheme_str() {
        Some("http") if url.path() == "/" && url.query().is_none() => Ok(text.to_owned()),
        Some("http") => wrong("has no path"),
        _ => wrong("begins with http://"),
    }
}

/// A label and its value.
fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no label; write it like app.kubernetes.io/part-of=berth")),
    }
}

/// A duration in the text form that the API uses, long enough for a few renewals.
fn lease_duration(text: &str) -> Result<Duration, String> {
    let span = berth_api::Duration::read(text).ok();
    span.filter(|span| (Duration::from_secs(5)..=berth_plan::lead::LONGEST).contains(span))
        .ok_or_else(|| format!("{text:?} is no duration from 5s to 5m; write it like 15s"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const REQUIRED: [&str; 10] = [
        "--pod-name",
        "berth-operator-0",
        "--pod-ip",
        "10.0.0.1",
        "--namespace",
        "berth",
        "--sidecar-image",
        "berth:1",
        "--gateway-url",
        "http://gateway.berth.svc:8080",
    ];

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_is_the_default() {
        for prefix in [&["berth-operator"][..], &["berth-operator", "run"][..]] {
            let args = with_default_command(prefix.iter().chain(REQUIRED.iter()).map(OsString::from));
            let Command::Run(options) = Cli::try_parse_from(args).unwrap().command else { panic!("run") };
            assert_eq!((options.namespace.as_str(), options.admin_listen.port()), ("berth", 8081));
        }
    }

    #[test]
    fn proxies_of_sidecars_are_checked_at_the_start_and_never_quoted() {
        let parse = |flags: &[&str]| {
            let args = ["berth-operator", "run"].iter().chain(REQUIRED.iter()).chain(flags);
            Cli::try_parse_from(args).map(|cli| match cli.command {
                Command::Run(options) => options.sidecar().proxy,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(parse(&[]).unwrap(), Proxy::default());
        let flags = ["--sidecar-https-proxy=http://proxy.corp:3128", "--sidecar-no-proxy=.corp,10.0.0.0/8"];
        let (https, no) = ("http://proxy.corp:3128".to_owned(), ".corp,10.0.0.0/8".to_owned());
        assert_eq!(parse(&flags).unwrap(), Proxy { https, http: String::new(), no });
        assert!(parse(&["--sidecar-http-proxy=http://proxy/"]).is_ok());
        for url in ["proxy:3128", "https://proxy:3128", "http://proxy/path", "socks5://proxy"] {
            let refused = parse(&[&format!("--sidecar-http-proxy={url}")]).unwrap_err().to_string();
            assert!(refused.contains("write it like http://proxy.example:3128"), "{refused}");
        }
        let refused = proxy("http://u:hunter2@proxy:3128").unwrap_err();
        assert!(
            refused.contains("must not hold a user or password") && !refused.contains("hunter2"),
            "{refused}"
        );
    }

    #[test]
    fn policies_know_their_peers_by_labels_or_are_not_wanted() {
        let parse = |flags: &[&str]| {
            let args = ["berth-operator", "run"].iter().chain(REQUIRED.iter()).chain(flags);
            Cli::try_parse_from(args).map(|cli| match cli.command {
                Command::Run(options) => options.callers(),
                other => panic!("{other:?}"),
            })
        };
        let callers = parse(&["--peer-labels=a=b,c=d"]).unwrap().unwrap();
        assert_eq!(callers.namespace, "berth");
        assert_eq!(callers.labels, [("a".into(), "b".into()), ("c".into(), "d".into())].into());
        assert_eq!(parse(&[]).unwrap().unwrap().labels.len(), 1);
        assert_eq!(parse(&["--network-policies=false"]).unwrap(), None);
        for labels in ["", "a", "a=", "=b"] {
            assert!(parse(&[&format!("--peer-labels={labels}")]).is_err(), "{labels}");
        }
    }

    #[test]
    fn a_lease_lasts_long_enough_for_a_few_renewals_and_not_for_ever() {
        let parse = |flag: &str| {
            let args = ["berth-operator", "run", flag];
            Cli::try_parse_from(args.iter().chain(REQUIRED.iter()))
        };
        assert!(parse("--lease-duration=5s").is_ok() && parse("--lease-duration=5m").is_ok());
        for span in ["4s", "301s", "15"] {
            let refused = parse(&format!("--lease-duration={span}")).unwrap_err().to_string();
            assert!(refused.contains("--lease-duration") && refused.contains("write it like"), "{refused}");
        }
    }

    #[test]
    fn the_other_commands_need_only_the_namespace() {
        let parse =
            |command| Cli::try_parse_from(["berth-operator", command, "--namespace=berth"]).unwrap().command;
        assert!(matches!(parse("uninstall"), Command::Uninstall(options) if !options.force));
        assert!(matches!(parse("check"), Command::Check(_)));
    }
}
