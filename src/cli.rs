//! The command line.

use berth_net::telemetry::LogFormat;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::net::SocketAddr;

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
    /// Base of the URLs that sessions show in their status.
    #[arg(long, env = "BERTH_GATEWAY_URL")]
    pub gateway_url: String,
    /// Address of health and metrics.
    #[arg(long, env = "BERTH_ADMIN_LISTEN", default_value = "0.0.0.0:8081")]
    pub admin_listen: SocketAddr,
    /// Form of the log lines: json or text.
    #[arg(long, env = "BERTH_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const REQUIRED: [&str; 6] = [
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
            let Command::Run(options) = Cli::try_parse_from(args).unwrap().command;
            assert_eq!((options.namespace.as_str(), options.admin_listen.port()), ("berth", 8081));
        }
    }
}
