//! `berth-operator uninstall`: ends every session while the operator that ends them still runs, then removes what the operator
//! made. The chart runs it before its own objects are deleted; everything that is left goes with them.
//!
//! Servers and the definitions of the kinds stay: they hold nothing, and another install finds them as they were.

pub mod farewell;
pub mod mark;
mod remains;
mod sessions;

use crate::api_error;
use crate::context::Clock;
use clap::Args;
use kube::Client;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause between two looks at what is left.
const POLL: Duration = Duration::from_secs(1);
/// Time that sessions leave for what comes after them; of a short timeout, a quarter.
const CLEARING: Duration = Duration::from_secs(45);
/// How much longer than the uninstall its mark counts.
const SLACK: Duration = Duration::from_secs(30);

/// Settings of the uninstall.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Namespace of the operator.
    #[arg(long, env = "BERTH_NAMESPACE")]
    pub namespace: String,
    /// Name of the operator's Deployment.
    #[arg(long, env = "BERTH_DEPLOYMENT", default_value = "berth-operator")]
    pub deployment: String,
    /// How long all of it may take.
    #[arg(long, env = "BERTH_UNINSTALL_TIMEOUT", default_value = "4m", value_parser = berth_api::Duration::read)]
    pub timeout: Duration,
    /// Give up what sessions hold that have not ended in time: their finalizer is removed, and their sessions at upstream
    /// servers may live on.
    #[arg(long)]
    pub force: bool,
}

/// Why the uninstall did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mark could not be written.
    #[error("cannot mark the uninstall in the lease of namespace {namespace:?}: {}", api_error::text(source))]
    Mark {
        /// Namespace of the operator.
        namespace: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// Sessions are left.
    #[error("{0}")]
    Sessions(sessions::Left),
    /// Something of the operator is left.
    #[error(transparent)]
    Remains(#[from] remains::Error),
}

/// Runs the uninstall; each step may run again.
pub async fn run(options: &Options, client: &Client, clock: Clock) -> Result<(), Error> {
    let deadline = Instant::now() + options.timeout;
    let until = clock.now().plus(options.timeout + SLACK);
    let namespace = &options.namespace;
    mark::set(client, namespace, until)
        .await
        .map_err(|source| Error::Mark { namespace: namespace.clone(), source: Box::new(source) })?;
    say("nothing is placed any more; sessions end with the reason Shutdown");
    let done = work(options, client, clock, deadline).await;
    if done.is_err() {
        // Whoever does not go on with the uninstall has a Berth that works: `work` has brought the operator back. The mark
        // ends by itself as well.
        let _ = mark::clear(client, namespace).await;
    }
    done
}

async fn work(options: &Options, client: &Client, clock: Clock, deadline: Instant) -> Result<(), Error> {
    let mut operator = remains::Operator::find(client, options).await?;
    let done = remove(&mut operator, options, client, clock, deadline).await;
    if done.is_err()
        && let Err(error) = operator.start().await
    {
        say(&format!("the operator stays stopped until its deployment has replicas again: {error}"));
    }
    done
}

async fn remove(
    operator: &mut remains::Operator,
    options: &Options,
    client: &Client,
    clock: Clock,
    deadline: Instant,
) -> Result<(), Error> {
    let ended_by = deadline - CLEARING.min(options.timeout / 4);
    loop {
        end_sessions(options, client, clock, ended_by).await?;
        say("no session is left");
        // With the operator gone, nobody makes again what is removed now.
        operator.stop(deadline).await?;
        if sessions::end_late(client).await.map_err(Error::Sessions)? {
            break;
        }
        // It took up a session before it saw the mark. That ends like the others: an operator that starts sees the mark
        // before it leads, so that it takes up no more.
        operator.start().await?;
    }
    remains::clear(client, &options.namespace, deadline).await?;
    say("pods, certificates and network policies of all pools are gone; McpServers and the kinds stay");
    Ok(())
}

async fn end_sessions(options: &Options, client: &Client, clock: Clock, by: Instant) -> Result<(), Error> {
    let Err(left) = sessions::end_all(client, by).await else { return Ok(()) };
    if options.force {
        return sessions::give_up(client).await.map_err(Error::Sessions);
    }
    let led = mark::is_led(client, &options.namespace, clock.now()).await.unwrap_or(false);
    Err(Error::Sessions(left.explained(led, options)))
}

/// A line of progress, for the log of the hook.
fn say(line: &str) {
    println!("{line}");
}

/// Waits until the next look; false when the time is over.
async fn again(deadline: Instant) -> bool {
    let now = Instant::now();
    if now >= deadline {
        return false;
    }
    sleep(POLL.min(deadline - now)).await;
    true
}

#[cfg(test)]
mod tests;
