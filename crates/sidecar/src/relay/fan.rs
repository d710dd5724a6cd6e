//! Messages of the upstream's to those of a session's clients whom they concern.

use super::ask;
use super::outside::{self, Outside};
use crate::budget::{COPIES, Charge};
use crate::session::{Aside, LIST_NEWS_PAUSE, ListNews, Refused, Scope, Session, Via};
use crate::upstream::Connection;
use berth_mcp::error;
use berth_mcp::frame::{Frame, TokenKey, splice};
use berth_mcp::sse::{Event, encode};
use bytes::Bytes;
use std::sync::Arc;
use tokio::time::sleep;

/// Passes on a message that came on the upstream's own stream; `held` covers it twice.
pub(super) fn dispatch(session: &Arc<Session>, connection: &Arc<Connection>, text: String, held: Charge) {
    match outside::read(&text) {
        Outside::Ping(id) => ask::answer(session, connection, error::render_result(&id, "{}")),
        Outside::Ask(method) => hand(session, connection, &text, &method, held),
        Outside::Withdraw => withdraw(session, connection, &text, held),
        Outside::Progress(call) => {
            if !session.aside(call, Aside { is_progress: true, text, held }) {
                dropped(session, "it is progress of a request that is over, or whose client is slow");
            }
        }
        Outside::Updated(uri) => tell(session, text, held, |scope| scope.wants(&uri)),
        Outside::Changed(list) => changed(session, list, ListNews { text, held, except: None }),
        Outside::News => tell(session, text, held, |_| true),
        Outside::Drop(reason) => dropped(session, reason),
    }
}

/// News that came on the answer of a call concern the session's other clients too, and the call's own, `has_it`, where the call
/// cannot bring them.
pub(super) fn tell_others(session: &Arc<Session>, has_it: Option<&Arc<Scope>>, text: &str) {
    let mut held = session.shared.budget.charge();
    if held.cover(COPIES * text.len()).is_err() {
        return dropped(session, "there is no memory for it");
    }
    let lacks_it = |scope: &Arc<Scope>| !has_it.is_some_and(|has_it| Arc::ptr_eq(scope, has_it));
    let (read, text) = (outside::read(text), text.to_owned());
    match read {
        Outside::Changed(list) => changed(session, list, ListNews { text, held, except: has_it.cloned() }),
        Outside::Updated(uri) => tell(session, text, held, |scope| lacks_it(scope) && scope.wants(&uri)),
        Outside::News => tell(session, text, held, lacks_it),
        _ => dropped(session, "it is no news"),
    }
}

/// Tells of a list that changed, unless that was told a moment ago: then the newest news wait for the end of the pause.
fn changed(session: &Arc<Session>, list: &'static str, news: ListNews) {
    let Some(news) = session.storms.hear(list, news) else { return };
    tell_of_change(session, news);
    let again = session.clone();
    session.spawn(async move {
        loop {
            tokio::select! {
                () = sleep(LIST_NEWS_PAUSE) => {}
                () = again.fenced().cancelled() => return again.storms.forget(list),
            }
            let Some(news) = again.storms.newest(list) else { return };
            tell_of_change(&again, news);
        }
    });
}

fn tell_of_change(session: &Arc<Session>, ListNews { text, held, except }: ListNews) {
    tell(session, text, held, |scope| !except.as_ref().is_some_and(|except| Arc::ptr_eq(scope, except)));
}

/// The server wants no answer any more to a request that it made: tells the client that was handed it.
pub(super) fn withdraw(session: &Arc<Session>, connection: &Arc<Connection>, text: &str, held: Charge) {
    let Ok(Frame::Notification { subject: Some(subject), .. }) = Frame::parse(text) else { return };
    let key = subject.key();
    let found = session
        .scopes()
        .into_iter()
        .find_map(|scope| scope.withdraw(connection.epoch, &key).map(|(id, via)| (scope, id, via)));
    let Some((scope, id, via)) = found else {
        return dropped(session, "it withdraws a request that no client has");
    };
    let text = if id == key { text.to_owned() } else { splice(text, [(subject.span(), &raw(&id))]) };
    let told = match via {
        Via::Call(call) => session.aside(call, Aside { is_progress: false, text, held }),
        Via::Stream(_) => scope.push(&event(text, held)),
    };
    if !told {
        dropped(session, "its client has left");
    }
}

/// Hands a request that belongs to no call to the client that can take it best: one that listens and whose call runs, one that
/// listens, one whose call runs; among equals the one that was there last.
fn hand(session: &Arc<Session>, connection: &Arc<Connection>, text: &str, method: &str, held: Charge) {
    let scopes = session.scopes();
    let able = |scope: &&Arc<Scope>| scope.profile.takes(method).is_ok();
    let best = scopes.iter().filter(able).filter_map(|scope| {
        let (stream, call) = (scope.stream(), scope.latest_call());
        let via = stream.map(Via::Stream).or(call.map(Via::Call))?;
        Some((u8::from(stream.is_some()) * 2 + u8::from(call.is_some()), scope, via))
    });
    // The first of equals: scopes come in the order of their last use.
    let best = best.reduce(|best, next| if next.0 > best.0 { next } else { best });
    let Some((_, scope, via)) = best else {
        let is_declared = scopes.is_empty() || scopes.iter().any(|scope| able(&scope));
        let undeclared = scopes.iter().find_map(|scope| scope.profile.takes(method).err());
        let undeclared = undeclared.filter(|_| !is_declared);
        let refused = undeclared.map_or_else(Refused::nobody, Refused::undeclared);
        return ask::refuse_for_all(session, connection, text, &refused);
    };
    let Some(for_client) = ask::hand(session, scope, connection, text, via, true) else { return };
    let handed = match via {
        Via::Stream(_) => push_request(scope, for_client, held),
        Via::Call(call) => session.aside(call, Aside { is_progress: false, text: for_client, held }),
    };
    if !handed {
        ask::client_left(session, scope, via);
    }
}

/// Sends a request on the newest stream of `scope`, which keeps it for the next one should it not be read.
fn push_request(scope: &Scope, text: String, held: Charge) -> bool {
    let key = match Frame::parse(&text) {
        Ok(Frame::Request { id, .. }) => id.key(),
        Ok(_) | Err(_) => return false,
    };
    scope.push_request(&event(text, held), &key)
}

/// Sends `text` on the streams of all scopes for which `concerns` holds.
fn tell(session: &Arc<Session>, text: String, held: Charge, concerns: impl Fn(&Arc<Scope>) -> bool) {
    let event = event(text, held);
    for scope in session.scopes() {
        if concerns(&scope) {
            scope.push(&event);
        }
    }
}

fn event(data: String, held: Charge) -> Bytes {
    held.attach(encode(&Event { event: Some("message".to_owned()), data, ..Event::default() }))
}

/// The JSON of an id.
fn raw(key: &TokenKey) -> String {
    match key {
        TokenKey::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
        TokenKey::Number(raw) => raw.clone(),
    }
}

fn dropped(session: &Session, reason: &'static str) {
    tracing::debug!(session = %session.uid, reason, "a message of the upstream's was dropped");
}
