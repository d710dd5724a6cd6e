//! The key from which those come that seal the session ids of clients.
//!
//! It is kept beside the CA, so that every operator derives the same key for a session, and a client's session id outlives
//! sidecars, gateways and operators. Whoever has it can act as any client; it never shows.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_wire::ScopeKey;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// What a derived key is for, so that none is ever used for two things.
const PURPOSE: &[u8] = b"berth.dev session ids of clients, 1";

/// The key of all sessions.
#[derive(Clone, PartialEq, Eq)]
pub struct Master([u8; 32]);

impl Master {
    /// A new one. Nothing without randomness.
    pub fn create() -> Option<Self> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok().map(|()| Self(bytes))
    }

    /// The one of these bytes, if they are as many as they have to be.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Its bytes, for its Secret alone.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// The key of one session at one server: HMAC-SHA256 of their UIDs.
    pub fn of_session(&self, session_uid: &str, server_uid: &str) -> ScopeKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut context = hmac::Context::with_key(&key);
        for part in [PURPOSE, session_uid.as_bytes(), server_uid.as_bytes()] {
            context.update(part);
            // No UID holds a zero byte.
            context.update(&[0]);
        }
        ScopeKey(STANDARD.encode(context.sign()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_at_every_server_has_a_key_of_its_own_and_always_the_same() {
        let master = Master::read(&[7; 32]).unwrap();
        let key = |session: &str, server: &str| master.of_session(session, server).0;
        assert_eq!(STANDARD.decode(key("a", "b")).unwrap().len(), 32);
        assert_eq!(key("a", "b"), Master::read(&[7; 32]).unwrap().of_session("a", "b").0);
        let others = [key("a", "c"), key("b", "b"), key("ab", ""), key("", "ab")];
        assert!(others.iter().all(|other| *other != key("a", "b")));
        assert_ne!(Master::read(&[8; 32]).unwrap().of_session("a", "b").0, key("a", "b"));
    }

    #[test]
    fn a_new_one_is_like_no_other_and_reads_back() {
        let (one, other) = (Master::create().unwrap(), Master::create().unwrap());
        assert!(one != other && Master::read(&one.bytes()) == Some(one.clone()));
        assert!(Master::read(&[0; 31]).is_none());
    }
}
