//! The tools. Each request names one and is answered as its name says.

use super::{STALLED_AT, Upstream, event_stream, events, json_answer};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderName, StatusCode};
use serde_json::{Value, json};

/// Answers a call of a session.
pub(super) fn tool(upstream: &Upstream, session: &str, request: &Value) -> Response {
    let id = &request["id"];
    let arguments = &request["params"]["arguments"];
    let result = |value: Value| json!({"jsonrpc": "2.0", "id": id, "result": value});
    let either = |answer: Value| {
        if arguments["stream"] == true { events(stream::iter([answer])) } else { json_answer(&answer) }
    };
    match request["params"]["name"].as_str().unwrap_or_default() {
        "echo" => json_answer(&result(arguments.clone())),
        "session" => json_answer(&result(json!({"session": session}))),
        "ask" => ask(upstream, arguments, result(Value::Null)),
        "wait" => {
            let (released, last) = (upstream.released.clone(), result(json!({"waited": true})));
            let body = stream::once(async move {
                released.notified().await;
                Ok::<_, std::convert::Infallible>(last.to_string())
            });
            ([("content-type", "application/json")], Body::from_stream(body)).into_response()
        }
        "stalled" => {
            let size = usize::try_from(arguments["bytes"].as_u64().unwrap()).unwrap();
            let mut first = Bytes::from(result(json!({"text": "x".repeat(size)})).to_string());
            let length = [
                ("content-type", "application/json".to_owned()),
                ("content-length", first.len().to_string()),
            ];
            let rest = first.split_off(STALLED_AT);
            let released = upstream.released.clone();
            let rest = stream::once(async move {
                released.notified().await;
                rest
            });
            let body = stream::iter([first]).chain(rest).map(Ok::<_, std::convert::Infallible>);
            (length, Body::from_stream(body)).into_response()
        }
        "fail" => either(json!({"jsonrpc": "2.0", "id": id, "error": arguments["error"]})),
        "large" => {
            let size = usize::try_from(arguments["bytes"].as_u64().unwrap()).unwrap();
            either(result(json!({"text": "x".repeat(size)})))
        }
        "head" => head(arguments, json_answer(&result(json!({"head": true})))),
        "status" => status(arguments),
        name => streamed(name, upstream, request).unwrap_or_else(|| {
            let error = json!({"code": -32602, "message": "unknown tool", "x": true});
            json_answer(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
        }),
    }
}

/// The answers that are streams; none for a tool that there is not.
fn streamed(name: &str, upstream: &Upstream, request: &Value) -> Option<Response> {
    let arguments = &request["params"]["arguments"];
    let token = &request["params"]["_meta"]["progressToken"];
    let result = |value: Value| json!({"jsonrpc": "2.0", "id": request["id"], "result": value});
    let progress = |n: u64| json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": n}});
    Some(match name {
        "count" => {
            let count = arguments["count"].as_u64().unwrap();
            let last = result(json!({"count": count}));
            events(stream::iter((0..count).map(progress).chain([last]).collect::<Vec<_>>()))
        }
        "hold" => {
            let (released, last, first) =
                (upstream.released.clone(), result(json!({"held": true})), progress(0));
            let wait = stream::once(async move {
                released.notified().await;
                last
            });
            events(stream::iter([first]).chain(wait))
        }
        "news" => events(stream::iter([arguments["news"].clone(), result(Value::Null)])),
        "silent" => events(stream::pending()),
        "tick" => {
            let tick = tokio::time::interval(std::time::Duration::from_millis(50));
            let message = progress(0);
            events(stream::unfold((tick, message), async |(mut tick, message)| {
                tick.tick().await;
                Some((message.clone(), (tick, message)))
            }))
        }
        "tag" => {
            let said = json!({"jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": 1, "message": arguments["tag"]}});
            events(stream::iter([said.clone(), said, result(json!({"tag": arguments["tag"]}))]))
        }
        "polled" => {
            let first = format!("id: 7\nretry: 300\ndata: {}\n\n", progress(0));
            event_stream(Body::from(first))
        }
        "cut" => {
            let first = Bytes::from(format!("data: {}\n\n", progress(0)));
            let pieces = [Ok(first), Err(std::io::Error::other("cut"))];
            event_stream(Body::from_stream(stream::iter(pieces)))
        }
        "flood" => events(stream::repeat(progress(0))),
        "stop" => events(stream::iter([progress(0)])),
        _ => return None,
    })
}

/// Adds as many headers to `response` as the arguments say, each so large.
fn head(arguments: &Value, mut response: Response) -> Response {
    let bytes = usize::try_from(arguments["bytes"].as_u64().unwrap()).unwrap();
    for number in 0..arguments["count"].as_u64().unwrap() {
        let name: HeaderName = format!("x-{number}").parse().unwrap();
        response.headers_mut().insert(name, "x".repeat(bytes).parse().unwrap());
    }
    response
}

/// Answers the status that the arguments name.
fn status(arguments: &Value) -> Response {
    let status = u16::try_from(arguments["status"].as_u64().unwrap()).unwrap();
    let wait = arguments["retryAfter"].as_str().map(|wait| [("retry-after", wait.to_owned())]);
    (StatusCode::from_u16(status).unwrap(), axum::response::AppendHeaders(wait.into_iter().flatten()))
        .into_response()
}

/// Asks the client, as the arguments say, and answers the call with the client's answer.
fn ask(upstream: &Upstream, arguments: &Value, mut last: Value) -> Response {
    let mut responses = upstream.responses.subscribe();
    let or = |name: &str, usual: &str| arguments.get(name).cloned().unwrap_or_else(|| json!(usual));
    let (id, method) = (or("id", "question-1"), or("method", "elicitation/create"));
    let question = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"message": "?"}});
    let wait = stream::once(async move {
        let mut answer = responses.recv().await.unwrap();
        while answer["id"] != id {
            answer = responses.recv().await.unwrap();
        }
        last["result"] = match answer.get_mut("result") {
            Some(result) => result.take(),
            None => json!({"error": answer["error"]}),
        };
        last
    });
    let mut first = vec![question, json!({"jsonrpc": "2.0", "id": "ping-1", "method": "ping"})];
    if let Some(then) = arguments.get("then") {
        first.push(then.clone());
    }
    events(stream::iter(first).chain(wait))
}
