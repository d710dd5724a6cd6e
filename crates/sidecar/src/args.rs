//! Command line and environment.

use berth_net::telemetry::LogFormat;
use berth_wire::ServerKey;
use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The sidecar of Berth: the only holder of connections to one upstream MCP server.
#[derive(Clone, Debug, Parser)]
#[command(name = "berth-sidecar", version)]
pub struct Args {
    /// UID of the McpServer that the pod serves.
    #[arg(long, env = "BERTH_SERVER_UID")]
    pub server_uid: String,
    /// Name of that McpServer, for errors and logs.
    #[arg(long, env = "BERTH_SERVER_NAME")]
    pub server_name: String,
    /// Revision of that McpServer.
    #[arg(long, env = "BERTH_REVISION")]
    pub revision: String,
    /// Sessions that the pod takes at once; with 1 it takes a single one in its life.
    #[arg(long, env = "BERTH_SLOTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: u32,
    /// MiB for message bodies that are held at once, of all sessions together: requests and answers that do not fit are refused.
    /// Keep it well below the memory limit of the container: buffers that grow, and what was freed a moment ago, come on top. The
    /// largest answer that an `McpServer` may allow, 32 MiB, needs room for two of it, and the request.
    #[arg(long, env = "BERTH_BUFFER_MIB", default_value = "72", value_parser = clap::value_parser!(u16).range(1..))]
    pub buffer_mib: u16,
    /// Threads that carry calls. A pod's sessions seldom keep one busy, and each call that goes from one to another pays for it.
    #[arg(long, env = "BERTH_WORKER_THREADS", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    pub worker_threads: u16,
    /// Folder with tls.crt, tls.key and ca.crt.
    #[arg(long, env = "BERTH_TLS_DIR", default_value = "/etc/berth/tls")]
    pub tls_dir: PathBuf,
    /// Where operator and gateway reach it.
    #[arg(long, env = "BERTH_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Where health and metrics are.
    #[arg(long, env = "BERTH_ADMIN_LISTEN", default_value = "0.0.0.0:8081")]
    pub admin_listen: SocketAddr,
    /// Form of the log lines: json or text.
    #[arg(long, env = "BERTH_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
}

impl Args {
    /// What the pod serves.
    pub fn server(&self) -> ServerKey {
        ServerKey {
            uid: self.server_uid.clone(),
            name: self.server_name.clone(),
            revision: self.revision.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_a_pod() {
        let args =
            ["berth-sidecar", "--server-uid", "u", "--server-name", "n", "--revision", "r", "--slots", "50"];
        let args = Args::try_parse_from(args).unwrap();
        assert_eq!((args.listen.port(), args.admin_listen.port()), (berth_wire::SIDECAR_PORT, 8081));
        assert_eq!((args.tls_dir, args.buffer_mib), (PathBuf::from("/etc/berth/tls"), 72));
        assert_eq!(args.worker_threads, 1);
    }
}
