//! Opens an MCP session of the legacy era: dial, `initialize`, `notifications/initialized`.

use super::connection::{Connection, SessionNames, delete, post};
use super::{BodyError, REFUSAL_LIMIT, Site, Step, Transport, Trouble};
use berth_mcp::frame::{Frame, Outcome as Answer};
use berth_mcp::{header, method, sse};
use berth_wire::{Failure, Outcome};
use bytes::Bytes;
use http::{HeaderValue, Response};
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Largest answer to `initialize`, in bytes: it is kept as long as the connection.
const INITIALIZE_LIMIT: usize = 1024 * 1024;

/// All that an attempt needs.
pub(crate) struct Handshake {
    pub epoch: u64,
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
    /// Stops the attempt as long as nothing has been sent.
    pub fence: CancellationToken,
}

/// How far an attempt came; read after its time is over.
#[derive(Default)]
struct Reached {
    step: Step,
    names: SessionNames,
}

/// What a failed attempt means.
pub(crate) enum Failed {
    /// The session began to end before anything was sent.
    Abandoned,
    /// The upstream could not be reached or refused.
    Trouble(Trouble),
}

impl Handshake {
    /// Runs the attempt. When it fails, what it opened is ended and its sockets are closed.
    pub(crate) async fn run(self) -> Result<Connection, Failed> {
        let mut reached = Reached::default();
        let result = match tokio::time::timeout(self.connect, self.open(&mut reached)).await {
            Ok(Ok(result)) => return Ok(self.connection(result, reached.names)),
            Ok(Err(failed)) => failed,
            Err(_) => Failed::Trouble(self.site(reached.step).lost(
                Failure::InitializeTimeout,
                format_args!(
                    "not finished within {} ms; raise timeouts.connect or check the server",
                    self.connect.as_millis()
                ),
            )),
        };
        let result = self.clean_up(result, &reached).await;
        self.transport.close().await;
        Err(result)
    }

    async fn open(&self, reached: &mut Reached) -> Result<Box<str>, Failed> {
        tokio::select! {
            biased;
            () = self.fence.cancelled() => return Err(Failed::Abandoned),
            dialled = self.transport.warm() => dialled.map_err(|error| Failed::Trouble(self.site(reached.step).dial(&error)))?,
        }
        self.initialize(reached).await.map_err(Failed::Trouble)
    }

    async fn initialize(&self, reached: &mut Reached) -> Result<Box<str>, Trouble> {
        reached.step = Step::Initialize;
        let site = self.site(reached.step);
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":{},"method":"{}","params":{}}}"#,
            self.id,
            method::INITIALIZE,
            self.params
        );
        let response = self.post(message, &reached.names).await.map_err(|error| site.send(&error))?;
        reached.names.id = response.headers().get(header::MCP_SESSION_ID).cloned();
        let text = self.reply(response, site).await?;
        let (result, version) = read_result(&text, site)?;
        reached.names.version = Some(version);

        reached.step = Step::Initialized;
        let site = self.site(reached.step);
        let message = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, method::INITIALIZED);
        let mut response = self.post(message, &reached.names).await.map_err(|error| site.send(&error))?;
        if !response.status().is_success() {
            return Err(site.status(response.status()));
        }
        response.body_mut().finish(REFUSAL_LIMIT).await;
        Ok(result)
    }

    async fn post(
        &self,
        message: String,
        names: &SessionNames,
    ) -> Result<Response<super::Body>, super::SendError> {
        post(&self.transport, names, Bytes::from(message)).await
    }

    /// The text of the response to `initialize`. Whatever comes before it on a stream has no client to go to.
    async fn reply(&self, mut response: Response<super::Body>, site: Site<'_>) -> Result<String, Trouble> {
        let status = response.status();
        let media_type =
            response.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is = |wanted| media_type.is_some_and(|media_type| header::is_media_type(media_type, wanted));
        let (json, stream) = (is(header::JSON), is(header::EVENT_STREAM));
        let body = response.body_mut();
        if !status.is_success() {
            let text = body.text(REFUSAL_LIMIT).await.unwrap_or_default();
            return Err(site.refusal(status, &text));
        }
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

    async fn reply_in_stream(&self, body: &mut super::Body, site: Site<'_>) -> Result<String, Trouble> {
        let id = self.id.to_string();
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
        Err(site.lost(Failure::ProtocolError, "the stream ended without an answer"))
    }

    /// Ends the upstream session of an attempt that failed, and says what may be left of it.
    async fn clean_up(&self, failed: Failed, reached: &Reached) -> Failed {
        let Failed::Trouble(mut trouble) = failed else { return failed };
        let deadline = Instant::now() + self.close;
        trouble.leftover = match delete(&self.transport, &reached.names, deadline).await {
            // There is no id to end it by; there may be a session nevertheless.
            Outcome::NotNeeded => trouble.leftover,
            outcome => outcome,
        };
        Failed::Trouble(trouble)
    }

    fn connection(self, result: Box<str>, names: SessionNames) -> Connection {
        Connection::new(self.epoch, result, self.transport, names)
    }

    fn site(&self, step: Step) -> Site<'_> {
        Site { server: &self.server, step }
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
