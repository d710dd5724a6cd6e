//! What a session's requests carry, its credential among it, and whom its sockets trust.

use super::trust::Trust;
use crate::sync::lock;
use berth_wire::Withheld;
use http::HeaderMap;
use std::sync::{Arc, Mutex};

/// What goes with every request of a session. The session shares it with its sockets, which ask when a request is about to be
/// written: a value that was replaced or taken away meanwhile goes out no more.
pub struct Credential(Mutex<Held>);

struct Held {
    carried: Carried,
    /// Authorities beside the public ones, for every socket that is opened from now on.
    trust: Option<Arc<Trust>>,
}

/// What requests carry at one time.
#[derive(Clone)]
pub enum Carried {
    /// These headers.
    Headers(Arc<HeaderMap>),
    /// Nothing: the credential cannot be had, so there must be no requests.
    Withheld(Arc<Withheld>),
}

impl Credential {
    /// One that is shared from now on.
    pub fn new(carried: Carried, trust: Option<Arc<Trust>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Held { carried, trust })))
    }

    /// Replaces it for every request that is written, and every socket that is opened, from now on.
    pub fn replace(&self, carried: Carried, trust: Option<Arc<Trust>>) {
        *lock(&self.0) = Held { carried, trust };
    }

    /// Whom a new socket trusts.
    pub(super) fn trust(&self) -> Option<Arc<Trust>> {
        lock(&self.0).trust.clone()
    }

    /// The headers of a request, unless there must be none.
    pub fn headers(&self) -> Result<Arc<HeaderMap>, Arc<Withheld>> {
        match &lock(&self.0).carried {
            Carried::Headers(headers) => Ok(headers.clone()),
            Carried::Withheld(withheld) => Err(withheld.clone()),
        }
    }
}
