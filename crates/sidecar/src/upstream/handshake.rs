//! Opens an MCP session of the legacy era: dial, `initialize`, `notifications/initialized`.

use super::connection::{Connection, SessionNames, delete, post};
use super::retry::asked_to_wait;
use super::{Body, BodyError, REFUSAL_LIMIT, SendError, Site, Step, Transport, Trouble};
use crate::fault;
use crate::sync::lock;
use berth_mcp::frame::{Frame, Outcome as Answer};
use berth_mcp::{header, method, sse};
use berth_wire::{Failure, Outcome};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use serde::Deserialize;
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Largest answer to `initialize`, in bytes: it is kept as long as the connection.
const INITIALIZE_LIMIT: usize = 1024 * 1024;

/// How long the answer to an `initialize` whose time is over is waited for, if `close` is not longer: an upstream that is no more
/// than slow opens a session, and only the answer names it (CASES.md 8).
const LATE_ANSWER: Duration = Duration::from_secs(30);

/// All that an attempt needs.
pub(crate) struct Handshake {
    pub epoch: u64,
    /// See [`Connection::state`].
    pub state: u64,
    pub server: String,
    pub transport: Arc<Transport>,
    /// JSON-RPC id of `initialize`.
    pub id: u64,
    /// Raw JSON of the parameters of `initialize`, as the client spelled them.
    pub params: Arc<str>,
    /// Bound of the whole.
    pub connect: Duration,
    /// Bound of ending what an attempt that failed has opened.
    pub close: Duration,
    /// Stops the attempt, unless `initialize` is on its way: its answer says what has to be ended.
    pub fence: CancellationToken,
}

/// What a failed attempt means.
pub(crate) enum Failed {
    /// The session began to end.
    Abandoned,
    /// The upstream could not be reached or refused.
    Trouble(Trouble),
}

/// What is left to be done after an attempt that failed.
pub(crate) struct Rest {
    attempt: Arc<Attempt>,
    /// The attempt itself, if its time was over before it was.
    open: Option<Open>,
    leftover: Outcome,
    _cut: Cut,
}

type Open = Pin<Box<dyn Future<Output = Result<Box<str>, Failed>> + Send>>;

/// A handshake, and how far it has come.
struct Attempt {
    handshake: Handshake,
    at: Mutex<At>,
    /// The head of the answer to `initialize` is there: whether there is a session to be ended, and its id, is known.
    headed: CancellationToken,
}

#[derive(Clone, Default)]
struct At {
    step: Step,
    names: SessionNames,
    /// That of the answer to `initialize`.
    status: Option<StatusCode>,
}

/// Cuts the sockets of an attempt that ends in any way but well, a panic too.
struct Cut(Option<Arc<Transport>>);

impl Drop for Cut {
    fn drop(&mut self) {
        if let Some(transport) = &self.0 {
            transport.cut();
        }
    }
}

impl Handshake {
    /// Runs the attempt, no longer than `connect`. After one that failed, its rest has to be seen to.
    pub(crate) async fn run(self) -> Result<Connection, (Failed, Rest)> {
        let mut cut = Cut(Some(self.transport.clone()));
        let attempt =
            Arc::new(Attempt { handshake: self, at: Mutex::default(), headed: CancellationToken::new() });
        let mut open: Open = Box::pin(attempt.clone().open());
        let (failed, open) = match timeout(attempt.handshake.connect, &mut open).await {
            Ok(Ok(result)) => {
                cut.0 = None;
                return Ok(attempt.connection(result));
            }
            Ok(Err(failed)) => (failed, None),
            Err(_) => (Failed::Trouble(attempt.timed_out()), Some(open)),
        };
        let leftover = match &failed {
            Failed::Abandoned => Outcome::NotNeeded,
            Failed::Trouble(trouble) => trouble.leftover,
        };
        Err((failed, Rest { attempt, open, leftover, _cut: cut }))
    }
}

impl Rest {
    /// Ends what the attempt opened, also if that is only known late, closes its sockets, and says what may be left.
    pub(crate) async fn clean_up(mut self) -> Outcome {
        let attempt = self.attempt.clone();
        if let Some(open) = self.open.take().filter(|_| attempt.reached().step == Step::Initialize) {
            attempt.late_answer(open).await;
        }
        let Handshake { transport, close, .. } = &attempt.handshake;
        let outcome = delete(transport, &attempt.reached().names, Instant::now() + *close).await;
        transport.close().await;
        match (outcome, attempt.reached().status) {
            // Whoever answers for the server knows no more of it than that it took too long.
            (Outcome::NotNeeded, Some(StatusCode::GATEWAY_TIMEOUT)) => Outcome::Unconfirmed,
            // Any other answer without an id says that there is no session.
            (Outcome::NotNeeded, Some(status)) if !status.is_server_error() => Outcome::NotNeeded,
            (Outcome::NotNeeded, _) => self.leftover,
            (outcome, _) => outcome,
        }
    }
}

impl Attempt {
    async fn open(self: Arc<Self>) -> Result<Box<str>, Failed> {
        let fence = &self.handshake.fence;
        tokio::select! {
            biased;
            () = fence.cancelled() => return Err(Failed::Abandoned),
            dialled = self.dial() => dialled.map_err(Failed::Trouble)?,
        }
        let response = self.initialize().await.map_err(Failed::Trouble)?;
        tokio::select! {
            biased;
            () = fence.cancelled() => Err(Failed::Abandoned),
            result = self.complete(response) => result.map_err(Failed::Trouble),
        }
    }

    async fn dial(&self) -> Result<(), Trouble> {
        let dialled = self.handshake.transport.warm(&|step| self.step(step)).await;
        dialled.map_err(|error| self.site().dial(&error))
    }

    /// Sends `initialize`; returns when the head of its answer is there.
    async fn initialize(&self) -> Result<Response<Body>, Trouble> {
        self.step(Step::Initialize);
        fault::point("initialize");
        let Handshake { id, params, .. } = &self.handshake;
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{}","params":{params}}}"#, method::INITIALIZE);
        let response = self.post(message).await.map_err(|error| self.site().send(&error))?;
        {
            let mut at = lock(&self.at);
            at.names.id = response.headers().get(header::MCP_SESSION_ID).cloned();
            at.status = Some(response.status());
        }
        self.headed.cancel();
        Ok(response)
    }

    /// Reads the answer to `initialize` and says that the client is ready.
    async fn complete(&self, response: Response<Body>) -> Result<Box<str>, Trouble> {
        fault::point("answer");
        let site = self.site();
        let text = self.reply(response, site).await?;
        let (result, version) = read_result(&text, site)?;
        lock(&self.at).names.version = Some(version);

        self.step(Step::Initialized);
        fault::point("initialized");
        let site = self.site();
        let message = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, method::INITIALIZED);
        let mut response = self.post(message).await.map_err(|error| site.send(&error))?;
        if !response.status().is_success() {
            return Err(asked_to_wait(site.status(response.status()), response.headers()));
        }
        response.body_mut().finish(REFUSAL_LIMIT).await;
        Ok(result)
    }

    async fn post(&self, message: String) -> Result<Response<Body>, SendError> {
        post(&self.handshake.transport, &self.reached().names, Bytes::from(message)).await
    }

    /// The text of the response to `initialize`. Whatever comes before it on a stream has no client to go to.
    async fn reply(&self, mut response: Response<Body>, site: Site<'_>) -> Result<String, Trouble> {
        let status = response.status();
        let content_type = response.headers().get(http::header::CONTENT_TYPE);
        let (json, stream) = (header::is_json(content_type), header::is_event_stream(content_type));
        if !status.is_success() {
            let text = response.body_mut().text(REFUSAL_LIMIT).await.unwrap_or_default();
            return Err(asked_to_wait(site.refusal(status, &text), response.headers()));
        }
        let body = response.body_mut();
        if json {
            return body.text(INITIALIZE_LIMIT).await.map_err(|error| site.body(&error));
        }
        if !stream {
            return Err(
                site.trouble(Failure::ProtocolError, "the answer is neither JSON nor an event stream")
            );
        }
        self.reply_in_stream(body, site).await
    }

    async fn reply_in_stream(&self, body: &mut Body, site: Site<'_>) -> Result<String, Trouble> {
        let id = self.handshake.id.to_string();
        let mut decoder = sse::Decoder::new(INITIALIZE_LIMIT);
        while let Some(chunk) = body.chunk().await.map_err(|error| site.send(&error))? {
            decoder.feed(&chunk);
            while let Some(event) = decoder.next_event() {
                let event = event.map_err(|error| site.body(&BodyError::TooLarge(error.limit)))?;
                match Frame::parse(&event.data) {
                    Ok(Frame::Response { id: Some(answered), .. }) if answered.raw() == id => {
                        return Ok(event.data);
                    }
                    Ok(Frame::Response { id: None, .. }) => return Ok(event.data),
                    _ => {}
                }
            }
        }
        Err(site.trouble(Failure::ProtocolError, "the stream ended without an answer"))
    }

    /// Waits for the answer to an `initialize` whose time is over: it tells the id of a session that has to be ended. The end of
    /// our own session does not wait as long, but it cuts nothing off either: nobody else would end the upstream's. Only
    /// the end of the pod cuts it off.
    async fn late_answer(&self, open: Open) {
        tokio::select! {
            biased;
            () = self.headed.cancelled() => {}
            _ = open => {}
            () = sleep(LATE_ANSWER.max(self.handshake.close)) => {}
        }
    }

    fn timed_out(&self) -> Trouble {
        let millis = self.handshake.connect.as_millis();
        self.site().lost(
            Failure::InitializeTimeout,
            format_args!("not finished within {millis} ms; raise timeouts.connect or check the server"),
        )
    }

    fn connection(&self, result: Box<str>) -> Connection {
        let Handshake { epoch, state, transport, .. } = &self.handshake;
        Connection::new((*epoch, *state), result, transport.clone(), self.reached().names)
    }

    fn step(&self, step: Step) {
        lock(&self.at).step = step;
    }

    fn reached(&self) -> At {
        lock(&self.at).clone()
    }

    fn site(&self) -> Site<'_> {
        Site { server: &self.handshake.server, step: self.reached().step }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeResult<'a> {
    #[serde(borrow)]
    protocol_version: Cow<'a, str>,
}

/// The raw result of `initialize` and the revision in it.
fn read_result(text: &str, site: Site<'_>) -> Result<(Box<str>, HeaderValue), Trouble> {
    let not_mcp = |text: &str| site.trouble(Failure::ProtocolError, text);
    match Frame::parse(text) {
        Ok(Frame::Response { outcome: Answer::Result(result), .. }) => {
            let read: InitializeResult<'_> =
                serde_json::from_str(result).map_err(|_| not_mcp("the result has no protocolVersion"))?;
            let version = HeaderValue::try_from(read.protocol_version.as_ref())
                .map_err(|_| not_mcp("the result's protocolVersion is not one"))?;
            Ok((result.into(), version))
        }
        Ok(Frame::Response { outcome: Answer::Error(error), .. }) => {
            let mut trouble = not_mcp("the upstream refused with a JSON-RPC error");
            trouble.rpc_error = Some(error.into());
            Err(trouble)
        }
        Ok(_) | Err(_) => Err(not_mcp("the answer is not a JSON-RPC response")),
    }
}
