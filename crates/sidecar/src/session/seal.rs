//! The session ids of clients: sealed tokens from which a scope can be rebuilt. Pure: key and nonce are given.
//!
//! A token is base64url of a version, a nonce and what ChaCha20-Poly1305 makes of the client's id and its `initialize`
//! parameters. It is bound to one `AgentSession` at one `McpServer`: elsewhere it opens nothing.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

const VERSION: u8 = 1;
/// Longest token that is looked at, in bytes.
const TOKEN_LIMIT: usize = 8 * 1024;

/// Names a client within its session.
pub(crate) type ClientId = [u8; 16];

/// Bytes of a nonce. Each token needs one that its key has not had.
pub(crate) type NonceBytes = [u8; NONCE_LEN];

/// A key of 32 bytes.
pub(crate) struct Key(LessSafeKey);

/// Where a token holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound<'a> {
    /// UID of the `AgentSession`.
    pub session: &'a str,
    /// UID of the `McpServer`.
    pub server: &'a str,
}

/// What a token holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub client: ClientId,
    /// Raw JSON of its `initialize` parameters.
    pub params: String,
}

impl Key {
    /// A key of these bytes.
    pub(crate) fn new(bytes: &[u8; 32]) -> Option<Self> {
        UnboundKey::new(&CHACHA20_POLY1305, bytes).ok().map(|key| Self(LessSafeKey::new(key)))
    }

    /// The key that `text` is in base64.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let bytes: [u8; 32] = STANDARD.decode(text).ok()?.try_into().ok()?;
        Self::new(&bytes)
    }

    /// The token of `sealed`.
    pub(crate) fn seal(&self, nonce: NonceBytes, bound: Bound<'_>, sealed: &Sealed) -> Option<String> {
        let mut text = [&sealed.client[..], sealed.params.as_bytes()].concat();
        let once = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(once, bound.aad(), &mut text).ok()?;
        Some(URL_SAFE_NO_PAD.encode([&[VERSION][..], &nonce[..], &text[..]].concat()))
    }

    /// What `token` holds, if this key made it for `bound`.
    pub(crate) fn open(&self, bound: Bound<'_>, token: &str) -> Option<Sealed> {
        if token.len() > TOKEN_LIMIT {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (version, rest) = bytes.split_first_mut()?;
        let (nonce, text) = rest.split_first_chunk_mut::<NONCE_LEN>()?;
        if *version != VERSION {
            return None;
        }
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.0.open_in_place(nonce, bound.aad(), text).ok()?;
        let (client, params) = opened.split_first_chunk::<16>()?;
        Some(Sealed { client: *client, params: String::from_utf8(params.to_vec()).ok()? })
    }
}

impl Bound<'_> {
    fn aad(self) -> Aad<Vec<u8>> {
        // UIDs hold no NUL, so that no two pairs are the same bytes.
        Aad::from([self.session.as_bytes(), &[0], self.server.as_bytes()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUND: Bound<'_> = Bound { session: "s", server: "u" };

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 32]).unwrap()
    }

    fn sealed() -> Sealed {
        Sealed { client: [7; 16], params: r#"{"protocolVersion":"2025-11-25"}"#.into() }
    }

    #[test]
    fn a_token_opens_with_its_key_at_its_session_and_server_only() {
        let token = key(1).seal([9; 12], BOUND, &sealed()).unwrap();
        assert_eq!(key(1).open(BOUND, &token), Some(sealed()));
        assert!(token.bytes().all(|byte| byte.is_ascii_graphic()) && !token.contains("protocolVersion"));
        assert_eq!(key(2).open(BOUND, &token), None);
        for other in [
            Bound { session: "t", ..BOUND },
            Bound { server: "v", ..BOUND },
            Bound { session: "", server: "s" },
            Bound { session: "u", server: "s" },
        ] {
            assert_eq!(key(1).open(other, &token), None, "{other:?}");
        }
    }

    #[test]
    fn a_key_is_read_from_base64_of_32_bytes() {
        let text = STANDARD.encode([1_u8; 32]);
        let token = key(1).seal([9; 12], BOUND, &sealed()).unwrap();
        assert_eq!(Key::read(&text).unwrap().open(BOUND, &token), Some(sealed()));
        for wrong in ["", "x", &STANDARD.encode([1_u8; 31]), &STANDARD.encode([1_u8; 33])] {
            assert!(Key::read(wrong).is_none(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_token_that_was_changed_anywhere_opens_nothing(at in 0_usize..100, bit in 0_u8..8) {
            let mut bytes = URL_SAFE_NO_PAD.decode(key(1).seal([9; 12], BOUND, &sealed()).unwrap()).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(key(1).open(BOUND, &URL_SAFE_NO_PAD.encode(&bytes)), None);
            bytes.truncate(at);
            prop_assert_eq!(key(1).open(BOUND, &URL_SAFE_NO_PAD.encode(&bytes)), None);
        }

        #[test]
        fn what_nobody_sealed_opens_nothing(text in "\\PC{0,200}") {
            prop_assert_eq!(key(1).open(BOUND, &text), None);
        }
    }
}
