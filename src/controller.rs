//! The two controllers, and what both have in common: bounded concurrency, backoff, a panic that stays in its object.

pub mod retry;
mod server;
mod session;
mod status;
mod stray;

pub use server::{ConfigMaps, Policies};

use crate::context::Context;
use crate::metrics::{Kind, Result as Outcome};
use crate::trigger::Trigger;
use berth_plan::time::Moment;
use futures::{FutureExt, StreamExt, future, stream};
use kube::runtime::Controller;
use kube::runtime::controller::{Action, Config, Error as RunError};
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::any::Any;
use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Sessions reconciled at once.
const SESSIONS: u16 = 32;
/// Servers reconciled at once.
const SERVERS: u16 = 4;
/// How long changes around one server are collected before it is looked at.
const SERVER_DEBOUNCE: Duration = Duration::from_millis(50);

/// An error of a reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of an `AgentSession`.
    #[error(transparent)]
    Session(#[from] session::Error),
    /// Of an `McpServer`.
    #[error(transparent)]
    Server(#[from] server::Error),
    /// The reconcile panicked.
    #[error("the reconcile of this object ended in a panic: {0}")]
    Panic(String),
}

/// Runs both controllers until `cancel`; reconciles that are under way then finish.
pub async fn run(ctx: Arc<Context>, cancel: CancellationToken) {
    let servers = drive(
        Kind::McpServer,
        &ctx,
        &ctx.stores.servers,
        &ctx.triggers.servers,
        &cancel,
        |object, ctx| async move { Ok(server::reconcile(&object, &ctx).await?) },
    );
    let sessions = drive(
        Kind::AgentSession,
        &ctx,
        &ctx.stores.sessions,
        &ctx.triggers.sessions,
        &cancel,
        |object, ctx| async move { Ok(session::reconcile(object, &ctx).await?) },
    );
    future::join(servers, sessions).await;
}

/// Runs one controller. Its reconciles come from `trigger` alone: one watch a kind feeds both controllers (see `watch`).
fn drive<K, F, Fut>(
    kind: Kind,
    ctx: &Arc<Context>,
    store: &Store<K>,
    trigger: &Trigger<K>,
    cancel: &CancellationToken,
    look: F,
) -> impl Future<Output = ()> + use<K, F, Fut>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    F: Fn(Arc<K>, Arc<Context>) -> Fut + Copy + Send + Sync + 'static,
    Fut: Future<Output = Result<Action, Error>> + Send + 'static,
{
    let config = match kind {
        Kind::AgentSession => Config::default().concurrency(SESSIONS),
        Kind::McpServer => Config::default().concurrency(SERVERS).debounce(SERVER_DEBOUNCE),
    };
    Controller::for_stream(stream::pending(), store.clone())
        .reconcile_on(trigger.stream())
        .with_config(config)
        .graceful_shutdown_on(cancel.clone().cancelled_owned())
        .run(
            move |object, ctx| guarded(kind, object, ctx, look).boxed(),
            move |object, error, ctx| failed(kind, &*object, error, &ctx),
            ctx.clone(),
        )
        .for_each(|result| {
            // Objects that are gone before they are looked at are no news; errors were logged by `failed`.
            if let Err(RunError::QueueError(error)) = result {
                tracing::warn!(%error, "trigger of a controller failed");
            }
            future::ready(())
        })
}

/// One reconcile: counted, and a panic becomes an error of this object instead of the end of the controller.
async fn guarded<K, F, Fut>(kind: Kind, object: Arc<K>, ctx: Arc<Context>, look: F) -> Result<Action, Error>
where
    K: Resource<DynamicType = ()>,
    F: Fn(Arc<K>, Arc<Context>) -> Fut,
    Fut: Future<Output = Result<Action, Error>>,
{
    let begun = Instant::now();
    let uid = object.uid().unwrap_or_default();
    let result = AssertUnwindSafe(look(object, ctx.clone())).catch_unwind().await.unwrap_or_else(|panic| {
        ctx.metrics.panicked();
        Err(Error::Panic(panic_text(&*panic)))
    });
    let outcome = if result.is_ok() { Outcome::Ok } else { Outcome::Error };
    ctx.metrics.reconciled(kind, outcome, begun.elapsed().as_secs_f64());
    if result.is_ok() {
        ctx.failures.clear(&uid);
    }
    result
}

fn failed<K: Resource<DynamicType = ()>>(kind: Kind, object: &K, error: &Error, ctx: &Context) -> Action {
    let pause = ctx.failures.next_pause(&object.uid().unwrap_or_default());
    tracing::warn!(
        ?kind,
        namespace = object.namespace().unwrap_or_default(),
        name = object.name_any(),
        %error,
        retry_seconds = pause.as_secs_f64(),
        "reconcile failed"
    );
    Action::requeue(pause)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned())
}

/// Pause before a look that is due as soon as caches show what happened.
const SOON: Duration = Duration::from_millis(500);

/// The look after a patch that came too late, or one at what the cache is about to have.
fn look_again() -> Action {
    Action::requeue(SOON)
}

/// The end of every reconcile that went well: again at the next deadline, or after a while in any case, since an event can
/// be lost.
fn requeue(uid: &str, next: Option<Moment>, now: Moment) -> Action {
    let resync = retry::resync(uid);
    Action::requeue(next.map_or(resync, |next| now.until(next).min(resync)))
}
