//! A client's `initialize`: it is answered with what the upstream said to the one that connected the session.

use super::answer::{Answer, not_held, refuse, respond};
use crate::budget::{COPIES, Charge};
use crate::session::{CallError, NoScope, Session};
use axum::response::Response;
use berth_mcp::error::{self, render_result};
use http::{HeaderValue, StatusCode};
use std::sync::Arc;

/// Largest parameters of `initialize`, in bytes. They are kept as the client spelled them by the session that connected with them
/// and by whoever waits for the connection. Those in use have some hundred bytes, more where a client
/// brings its icons along.
const MAX_PARAMS: usize = 256 * 1024;

/// An `initialize`.
pub(super) struct Initialize<'a> {
    /// Its id, raw.
    pub id: &'a str,
    /// Raw JSON of its parameters.
    pub params: &'a str,
    /// Covers the message.
    pub charge: Charge,
}

impl Initialize<'_> {
    /// Opens a client scope on the session's connection, which is made if there is none. The charge lives until the client has its
    /// answer.
    pub(super) async fn open(self, session: &Arc<Session>, accepts_stream: bool) -> Response {
        let Self { id, params, mut charge } = self;
        if params.len() > MAX_PARAMS {
            let text =
                format!("the parameters of initialize are larger than the limit of {MAX_PARAMS} bytes");
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, error::TOO_LARGE, &text, Some(id));
        }
        let Some((desired, books)) = session.begin_initialize() else { return not_held() };
        let server = desired.server.name.clone();
        // Its token is known before anything else is, so that it can go with an answer that is late.
        let client = session.new_client(params);
        let token = client.as_ref().and_then(|client| HeaderValue::try_from(&client.token).ok());
        let (Some(client), Some(token)) = (client, token) else {
            let text = "the sidecar has no randomness for a session id";
            return refuse(StatusCode::INTERNAL_SERVER_ERROR, error::INTERNAL, text, Some(id));
        };
        let params: Arc<str> = params.into();
        let (session, id, early) = (session.clone(), id.to_owned(), token.clone());
        let answer = async move {
            let _books = books;
            let opened = async {
                let connection = session.connection(Some(&params)).await?;
                let result = &connection.initialize_result;
                charge.fit(COPIES * result.len()).map_err(CallError::NoRoom)?;
                match session.open_scope(client, &connection) {
                    Ok(()) => Ok(render_result(&id, result)),
                    Err(NoScope::Unknown | NoScope::Ending) => Err(CallError::Ending),
                    Err(NoScope::TooMany) => Err(CallError::TooManyClients),
                }
            };
            match opened.await {
                Ok(text) => Answer::Opened(charge.attach(text), token),
                Err(error) => {
                    let text = error.render(&server, &id, false);
                    // An error is told, room for it or not.
                    let _ = charge.fit(COPIES * text.len());
                    Answer::Json(charge.attach(text))
                }
            }
        };
        respond(answer, accepts_stream, Some(early)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::relay::receive;
    use crate::session::Desired;
    use axum::body::Body;
    use http::HeaderMap;
    use tokio::net::TcpListener;

    fn initialize(params: usize) -> String {
        let params = format!(r#"{{"x":"{}"}}"#, "y".repeat(params - r#"{"x":""}"#.len()));
        format!(r#"{{"jsonrpc":"2.0","id":"i","method":"initialize","params":{params}}}"#)
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_connection_is_covered_and_parameters_have_a_bound() {
        // It takes connections and says nothing.
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = fixture::shared();
        let budget = shared.budget.clone();
        let mut spec = fixture::spec("Bearer first");
        spec.upstream.url = format!("http://{}/", upstream.local_addr().unwrap());
        spec.timeouts.connect_millis = 60_000;
        let desired = Desired::new(spec, &shared.dialer).unwrap();
        let session = Session::new("s".into(), desired, shared);

        let headers = HeaderMap::new();
        let response = receive(&session, &headers, Body::from(initialize(MAX_PARAMS + 1))).await;
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let text = axum::body::to_bytes(response.into_body(), 1024).await.unwrap();
        let text = std::str::from_utf8(&text).unwrap();
        assert!(text.contains(r#""id":"i""#) && text.contains("limit of 262144 bytes"), "{text}");
        assert_eq!(budget.left(), budget.whole());

        let response = receive(&session, &headers, Body::from(initialize(MAX_PARAMS))).await;
        assert_eq!(response.status(), StatusCode::OK, "a stream, as there is no answer yet");
        assert!(budget.whole() - budget.left() >= COPIES * MAX_PARAMS, "{} are left", budget.left());
        let said = axum::body::to_bytes(response.into_body(), 1024 * 1024).await.unwrap();
        assert!(std::str::from_utf8(&said).unwrap().contains("-32050"), "{said:?}");
        drop(said);
        assert_eq!(budget.left(), budget.whole());
    }
}
