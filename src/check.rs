//! `berth-operator check`: whether an install works, for `helm test`.
//!
//! It asks what a first user would: are the kinds there, does an operator lead, and does the gateway accept a token of this
//! cluster. The last goes all the way through the gateway, so that its right to review tokens is shown as well.

mod http;

use crate::api_error;
use crate::context::Clock;
use crate::start;
use crate::uninstall::mark;
use ::http::StatusCode;
use clap::Args;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Pause between two attempts.
const RETRY: Duration = Duration::from_secs(2);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(20);
/// JSON-RPC error of the gateway for a session that is not there.
const UNKNOWN_SESSION: &str = "-32001";

/// Settings of the check.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Namespace of the operator and the gateway.
    #[arg(long, env = "BERTH_NAMESPACE")]
    pub namespace: String,
    /// Name of the gateway's Service.
    #[arg(long, env = "BERTH_GATEWAY_SERVICE", default_value = "berth-gateway")]
    pub gateway_service: String,
    /// Host to name in the request to the gateway, when it lets only some in.
    #[arg(long, env = "BERTH_GATEWAY_HOST")]
    pub gateway_host: Option<String>,
    /// File with a token for the gateway's audience.
    #[arg(long, env = "BERTH_TOKEN_FILE", default_value = "/var/run/secrets/berth/token")]
    pub token_file: PathBuf,
    /// How long to go on trying: an install that was made just now takes a moment.
    #[arg(long, env = "BERTH_CHECK_TIMEOUT", default_value = "1m", value_parser = berth_api::Duration::read)]
    pub timeout: Duration,
}

/// What does not work, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// Runs all checks, each until it holds or the time is over.
pub async fn run(options: &Options, client: &Client, clock: Clock) -> Result<(), Error> {
    let all = async || {
        kinds(client).await?;
        println!("ok: the cluster serves both kinds as this version needs them");
        leader(options, client, clock).await?;
        println!("ok: an operator leads");
        gateway(options, client).await?;
        println!("ok: the gateway accepts a token of this cluster");
        Ok(())
    };
    let deadline = Instant::now() + options.timeout;
    loop {
        let said = match timeout(ATTEMPT, all()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => Error(format!("a check gave no answer within {}s", ATTEMPT.as_secs())),
        };
        if Instant::now() >= deadline {
            return Err(said);
        }
        println!("not yet: {said}");
        sleep(RETRY).await;
    }
}

async fn kinds(client: &Client) -> Result<(), Error> {
    start::lacking(client).await.map_or(Ok(()), |lacking| Err(Error(lacking)))
}

async fn leader(options: &Options, client: &Client, clock: Clock) -> Result<(), Error> {
    let namespace = &options.namespace;
    match mark::is_led(client, namespace, clock.now()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error(format!(
            "no operator leads: see `kubectl get pods -n {namespace}` and the log of the operator"
        ))),
        Err(error) => Err(Error(format!("cannot read the leader's lease: {}", api_error::text(&error)))),
    }
}

/// Asks for a session that does not exist. Only a caller whose token was reviewed is told so.
async fn gateway(options: &Options, client: &Client) -> Result<(), Error> {
    let name = &options.gateway_service;
    let token = tokio::fs::read_to_string(&options.token_file)
        .await
        .map_err(|error| Error(format!("cannot read the token {}: {error}", options.token_file.display())))?;
    let address = address(options, client).await?;
    let request = http::Request {
        host: options.gateway_host.as_deref().unwrap_or(name),
        path: &format!("/{}/berth-check/berth-check/mcp", options.namespace),
        token: token.trim(),
        body: r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
    };
    let answer = http::post(address, &request).await.map_err(|error| {
        Error(format!("service {name:?} at {address} gives no answer: {error}; is a gateway ready?"))
    })?;
    judge(&answer).map_err(|why| Error(format!("the gateway at {address} {why}")))
}

/// What an answer of the gateway to a session that does not exist says about it.
fn judge(answer: &http::Answer) -> Result<(), String> {
    match answer.status {
        StatusCode::NOT_FOUND if answer.body.contains(UNKNOWN_SESSION) => Ok(()),
        StatusCode::UNAUTHORIZED => Err(
            "refuses a token of this cluster: compare gateway.audience, and its right to create tokenreviews"
                .to_owned(),
        ),
        StatusCode::FORBIDDEN => {
            Err(format!("lets this host not in: see gateway.allowedHosts; {}", answer.body))
        }
        StatusCode::SERVICE_UNAVAILABLE => Err(format!("cannot answer: {}", answer.body)),
        status => Err(format!("answers {status}, is something else behind its Service? {}", answer.body)),
    }
}

async fn address(options: &Options, client: &Client) -> Result<SocketAddr, Error> {
    let name = &options.gateway_service;
    let api: Api<Service> = Api::namespaced(client.clone(), &options.namespace);
    let service = api
        .get(name)
        .await
        .map_err(|error| Error(format!("cannot read service {name:?}: {}", api_error::text(&error))))?;
    let spec = service.spec.unwrap_or_default();
    let ip = spec.cluster_ip.and_then(|ip| ip.parse::<IpAddr>().ok());
    let port = spec.ports.iter().flatten().next().and_then(|port| u16::try_from(port.port).ok());
    ip.zip(port)
        .map(SocketAddr::from)
        .ok_or_else(|| Error(format!("service {name:?} has no address in the cluster; give it a cluster IP")))
}

#[cfg(test)]
mod tests;
