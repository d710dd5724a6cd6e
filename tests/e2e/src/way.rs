//! An operator's way to the API server, on which the events of watches come late, and which ends at a moment that a test
//! chooses.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use std::convert::Infallible;
use std::future::pending;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// What only a status that names a slot holds.
const PLACE: &[u8] = b"\"podRef\"";

/// A moment in the life of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A pod was made, and the operator does not learn of it.
    PodMade,
    /// A sidecar holds a slot, and the status that says so is not written.
    SlotUnwritten,
}

/// An answer on its way back.
type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;

/// The way of one process.
pub struct Way {
    client: Client,
    /// How late events are.
    delay: Duration,
    /// Namespace whose objects count.
    namespace: String,
    /// Where it is to end.
    end: Mutex<Option<Moment>>,
    /// Whether it has ended: no request passes any more.
    ended: watch::Sender<bool>,
    /// Requests that the API server has, or may have, and has not answered.
    unanswered: watch::Sender<usize>,
    /// Whether the process has looked at the Lease.
    runs: watch::Sender<bool>,
    /// Pods that it made.
    made: watch::Sender<u32>,
}

/// One request under way.
struct UnderWay(Arc<Way>);

impl UnderWay {
    fn new(way: &Arc<Way>) -> Self {
        way.unanswered.send_modify(|count| *count += 1);
        Self(way.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.unanswered.send_modify(|count| *count -= 1);
    }
}

impl Way {
    /// A way that begins at `listener` and goes on with `client`.
    pub fn open(listener: TcpListener, client: Client, namespace: &str, delay: Duration) -> Arc<Self> {
        let way = Arc::new(Self {
            client,
            delay,
            namespace: namespace.to_owned(),
            end: Mutex::default(),
            ended: watch::Sender::default(),
            unanswered: watch::Sender::default(),
            runs: watch::Sender::default(),
            made: watch::Sender::default(),
        });
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let of_listener = Arc::downgrade(&way);
        tokio::spawn(async move {
            while let (Ok((connection, _)), Some(way)) = (listener.accept().await, of_listener.upgrade()) {
                let service = service_fn(move |request| way.clone().pass(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
            }
        });
        way
    }

    /// Has it end at the next such moment.
    pub fn end_at(&self, moment: Moment) {
        *self.end.lock().unwrap() = Some(moment);
    }

    /// Ends it now.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until it has ended.
    pub async fn has_ended(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Waits until every request that has passed is answered.
    pub async fn is_empty(&self) {
        let _ = self.unanswered.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Waits until the process runs for the Lease: its caches are filled then.
    pub async fn runs_for_lease(&self) {
        let _ = self.runs.subscribe().wait_for(|runs| *runs).await;
    }

    /// Pods that the process made.
    pub fn made(&self) -> u32 {
        *self.made.borrow()
    }

    async fn pass(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer, Infallible> {
        let (mut head, body) = request.into_parts();
        let Ok(body) = body.collect().await else { return pending().await };
        let body = body.to_bytes();
        for name in [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
            head.headers.remove(name);
        }
        let answer = if is_watch(&head) {
            let request = Request::from_parts(head, Body::from(body));
            self.client.send(request).await.map(|answer| answer.map(|body| late(body, self.delay)))
        } else {
            self.pass_whole(head, body).await
        };
        let mut answer = answer.unwrap_or_else(|error| failed(&error));
        for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
            answer.headers_mut().remove(name);
        }
        Ok(answer)
    }

    /// A request with a whole answer. It is counted before it is seen whether the way has ended: what is not counted does not
    /// pass.
    async fn pass_whole(self: &Arc<Self>, head: Parts, body: Bytes) -> Result<Answer, kube::Error> {
        let under_way = UnderWay::new(self);
        if head.uri.path().contains("/leases/") {
            self.runs.send_replace(true);
        }
        let makes_pod = self.is_of(&head, &Method::POST, "/pods");
        let tells_slot = self.is_of(&head, &Method::PATCH, "/status")
            && head.uri.path().contains("/agentsessions/")
            && body.windows(PLACE.len()).any(|window| window == PLACE);
        if *self.ended.borrow() || (tells_slot && self.ends_at(Moment::SlotUnwritten)) {
            drop(under_way);
            return pending().await;
        }
        let way = self.clone();
        // A process that dies takes back nothing that it has sent.
        let passed = tokio::spawn(async move {
            let answer = way.client.send(Request::from_parts(head, Body::from(body))).await?;
            let (head, body) = answer.into_parts();
            let body = body.collect_bytes().await?;
            way.made.send_modify(|made| *made += u32::from(makes_pod && head.status == StatusCode::CREATED));
            drop(under_way);
            Ok::<_, kube::Error>((head, body))
        });
        let (head, body) = passed.await.expect("the task ends by itself")?;
        if makes_pod && head.status == StatusCode::CREATED && self.ends_at(Moment::PodMade) {
            return pending().await;
        }
        Ok(Response::from_parts(head, whole(body)))
    }

    fn is_of(&self, head: &Parts, method: &Method, suffix: &str) -> bool {
        let path = head.uri.path();
        head.method == *method
            && path.contains(&format!("/namespaces/{}/", self.namespace))
            && path.ends_with(suffix)
    }

    /// Ends the way, if this is the moment.
    fn ends_at(&self, moment: Moment) -> bool {
        let is_it = self.end.lock().unwrap().take_if(|end| *end == moment).is_some();
        if is_it {
            self.end();
        }
        is_it
    }
}

fn is_watch(head: &Parts) -> bool {
    head.uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// The body, each part of it so much later, in its order.
fn late(body: Body, delay: Duration) -> UnsyncBoxBody<Bytes, kube::Error> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut parts = body.into_data_stream();
        loop {
            tokio::select! {
                () = sender.closed() => return,
                part = parts.next() => {
                    let Some(part) = part else { return };
                    let _ = sender.send((Instant::now() + delay, part));
                }
            }
        }
    });
    let parts = stream::unfold(receiver, |mut receiver| async {
        let (due, part) = receiver.recv().await?;
        sleep_until(due).await;
        Some((part, receiver))
    });
    StreamBody::new(parts.map_ok(Frame::data)).boxed_unsync()
}

fn whole(body: Bytes) -> UnsyncBoxBody<Bytes, kube::Error> {
    Full::from(body).map_err(|never| match never {}).boxed_unsync()
}

fn failed(error: &kube::Error) -> Answer {
    let mut answer = Response::new(whole(Bytes::from(error.to_string())));
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer
}
