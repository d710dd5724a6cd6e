//! The credential that a Secret holds for a server or a session. The value itself never reaches an error.

use berth_api::{Reason, SecretKeyRef, label};
use berth_wire::Header;
use k8s_openapi::api::core::v1::Secret;
use std::fmt;

/// Whose credential it is. The Secret's label has to say the same: who may create sessions must not be able to send a
/// server's credential, or any other Secret of the namespace, to a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// An `McpServer`: one for all its sessions.
    Server,
    /// An `AgentSession`.
    Session,
}

impl User {
    /// The value of the label that permits the use.
    const fn label(self) -> &'static str {
        match self {
            Self::Server => label::CREDENTIAL_SERVER,
            Self::Session => label::CREDENTIAL_SESSION,
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// A key of a Secret, as an object names it.
#[derive(Clone, Copy, Debug)]
pub struct Reference<'a> {
    /// Whose credential it is.
    pub user: User,
    /// Path of the field that names it.
    pub field: &'a str,
    /// The Secret and its key.
    pub named: &'a SecretKeyRef,
}

/// What is known of a Secret that is named.
#[derive(Clone, Copy)]
pub enum SecretState<'a> {
    /// There is none of that name, or none is named.
    Missing,
    /// It exists without the label that lets the operator read it.
    Unlabelled,
    /// It exists and carries the label, whatever its value.
    Present(&'a Secret),
}

impl fmt::Debug for SecretState<'_> {
    /// Never the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("Missing"),
            Self::Unlabelled => f.write_str("Unlabelled"),
            Self::Present(secret) => f.debug_tuple("Present").field(&secret.metadata.name).finish(),
        }
    }
}

/// Why there is no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The Secret does not exist.
    #[error(
        "secret {secret:?} does not exist; create it with key {key:?} and the label berth.dev/credential={user}"
    )]
    SecretNotFound {
        /// Name of the Secret.
        secret: String,
        /// The key that is looked for.
        key: String,
        /// Whose credential it would be.
        user: User,
    },
    /// The Secret has no such key.
    #[error("secret {secret:?} has no key {key:?}; add it or change {field}.key")]
    KeyNotFound {
        /// Name of the Secret.
        secret: String,
        /// The key that is looked for.
        key: String,
        /// Path of the field that names them.
        field: String,
    },
    /// The Secret may not be used for this.
    #[error("secret {secret:?} is not labelled berth.dev/credential={user}; label it to allow its use here")]
    NotPermitted {
        /// Name of the Secret.
        secret: String,
        /// Whose credential it would be.
        user: User,
    },
    /// The value is no credential.
    #[error("key {key:?} of secret {secret:?} {problem}; write the credential anew")]
    Invalid {
        /// Name of the Secret.
        secret: String,
        /// The key.
        key: String,
        /// What is wrong with the value, never the value.
        problem: Unusable,
    },
}

impl Refusal {
    /// The reason for conditions.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::SecretNotFound { .. } | Self::KeyNotFound { .. } => Reason::RefNotFound,
            Self::NotPermitted { .. } => Reason::RefNotPermitted,
            Self::Invalid { .. } => Reason::InvalidCredential,
        }
    }

    /// Whether it may be over without an event that says so: a Secret without the label comes and goes unseen.
    pub const fn is_unseen(&self) -> bool {
        matches!(self, Self::SecretNotFound { .. } | Self::NotPermitted { .. })
    }
}

/// Longest credential in bytes. Upstreams seldom take more than 8 or 16 KiB of headers in all, and what a sidecar is sent is
/// bounded as well: it has to take a credential of this length beside the longest of everything else. The one credential of a
/// session is the only header that a user fills, so that this bounds all of them together.
pub const MAX_BYTES: usize = 16 * 1024;

/// Why bytes are no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Nothing is left once trailing white space is gone.
    #[error("is empty")]
    Empty,
    /// It is longer than [`MAX_BYTES`].
    #[error("holds more than {MAX_BYTES} bytes, the most that is sent in a header")]
    TooLong,
    /// It holds what a header must not carry: control characters, a byte order mark, anything outside visible ASCII, or
    /// a space at its beginning.
    #[error(
        "holds characters that a header cannot carry (allowed are visible ASCII characters, and spaces between them)"
    )]
    Illegal,
}

/// The credential that `reference` names, where the Secret is as `secret` says.
pub fn resolve<'a>(reference: Reference<'_>, secret: SecretState<'a>) -> Result<&'a str, Refusal> {
    let Reference { user, field, named } = reference;
    let (name, key) = (named.name.clone(), named.key.clone());
    let secret = match secret {
        SecretState::Missing => return Err(Refusal::SecretNotFound { secret: name, key, user }),
        SecretState::Unlabelled => return Err(Refusal::NotPermitted { secret: name, user }),
        SecretState::Present(secret) => secret,
    };
    let labels = secret.metadata.labels.as_ref();
    if labels.and_then(|map| map.get(label::CREDENTIAL)).is_none_or(|value| value != user.label()) {
        return Err(Refusal::NotPermitted { secret: name, user });
    }
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(&key)) else {
        return Err(Refusal::KeyNotFound { secret: name, key, field: field.to_owned() });
    };
    parse(&bytes.0).map_err(|problem| Refusal::Invalid { secret: name, key, problem })
}

/// The header that carries a credential after the word `scheme`, or alone if that is empty.
pub fn header(name: &str, scheme: &str, credential: &str) -> Header {
    let value = if scheme.is_empty() { credential.to_owned() } else { format!("{scheme} {credential}") };
    Header { name: name.to_owned(), value }
}

/// The credential in `bytes`. Trailing ASCII white space is stripped, since `echo token |` leaves a newline; anything else
/// that a header cannot carry is refused rather than sent or changed.
fn parse(bytes: &[u8]) -> Result<&str, Unusable> {
    let kept = bytes.trim_ascii_end();
    if kept.is_empty() {
        return Err(Unusable::Empty);
    }
    if kept.len() > MAX_BYTES {
        return Err(Unusable::TooLong);
    }
    let legal = !kept.starts_with(b" ") && kept.iter().all(|byte| matches!(byte, b' '..=b'~'));
    std::str::from_utf8(kept).ok().filter(|_| legal).ok_or(Unusable::Illegal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::fixture::secret;

    fn resolved(user: User, state: SecretState<'_>) -> Result<&str, Refusal> {
        let named = SecretKeyRef { name: "token".into(), key: "value".into() };
        resolve(Reference { user, field: "spec.servers[1].credential.secretKeyRef", named: &named }, state)
    }

    #[test]
    fn the_label_has_to_say_exactly_whose_credential_it_is() {
        for (label, server, session) in
            [("server", true, false), ("session", false, true), ("Session", false, false)]
        {
            let secret = secret(label, "value", "tok");
            for (user, permitted) in [(User::Server, server), (User::Session, session)] {
                let found = resolved(user, SecretState::Present(&secret));
                let refusal = Refusal::NotPermitted { secret: "token".into(), user };
                assert_eq!(found, if permitted { Ok("tok") } else { Err(refusal) }, "{label} {user}");
            }
        }
    }

    #[test]
    fn a_refusal_names_kind_name_key_and_remedy() {
        let refused = |state: SecretState<'_>| {
            let refusal = resolved(User::Session, state).unwrap_err();
            (refusal.reason(), refusal.is_unseen(), refusal.to_string())
        };
        let text = |text: &str| text.to_owned();
        assert_eq!(
            refused(SecretState::Missing),
            (
                Reason::RefNotFound,
                true,
                text(
                    "secret \"token\" does not exist; create it with key \"value\" and the label berth.dev/credential=session"
                )
            )
        );
        assert_eq!(
            refused(SecretState::Unlabelled),
            (
                Reason::RefNotPermitted,
                true,
                text(
                    "secret \"token\" is not labelled berth.dev/credential=session; label it to allow its use here"
                )
            )
        );
        assert_eq!(
            refused(SecretState::Present(&secret("session", "other", "tok"))),
            (
                Reason::RefNotFound,
                false,
                text(
                    "secret \"token\" has no key \"value\"; add it or change spec.servers[1].credential.secretKeyRef.key"
                )
            )
        );
        assert_eq!(
            refused(SecretState::Present(&secret("session", "value", "hunter2\u{1}"))),
            (
                Reason::InvalidCredential,
                false,
                text(
                    "key \"value\" of secret \"token\" holds characters that a header cannot carry (allowed are visible ASCII characters, and spaces between them); write the credential anew"
                )
            )
        );
    }

    #[test]
    fn a_secret_never_shows_its_data() {
        let secret = secret("session", "value", "hunter2");
        let shown = format!("{:?}", SecretState::Present(&secret));
        assert_eq!(shown, "Present(Some(\"token\"))");
    }

    #[test]
    fn trailing_white_space_is_stripped_and_nothing_else() {
        for bytes in ["tok", "tok\n", "tok\r\n", "tok \t\n"] {
            assert_eq!(parse(bytes.as_bytes()), Ok("tok"), "{bytes:?}");
        }
        assert_eq!(parse(b"Basic dG9r"), Ok("Basic dG9r"));
    }

    #[test]
    fn a_credential_is_bounded_and_its_bound_is_told() {
        let longest = "x".repeat(MAX_BYTES);
        assert_eq!(parse(format!("{longest}\n").as_bytes()), Ok(longest.as_str()));
        for bytes in [MAX_BYTES + 1, 1 << 20] {
            let secret = secret("session", "value", &"x".repeat(bytes));
            let refusal = resolved(User::Session, SecretState::Present(&secret)).unwrap_err();
            assert_eq!((refusal.reason(), refusal.is_unseen()), (Reason::InvalidCredential, false));
            assert_eq!(
                refusal.to_string(),
                "key \"value\" of secret \"token\" holds more than 16384 bytes, the most that is sent in a header; write the credential anew"
            );
        }
    }

    #[test]
    fn what_a_header_cannot_carry_is_refused() {
        for bytes in ["", "\n", " \t "] {
            assert_eq!(parse(bytes.as_bytes()), Err(Unusable::Empty), "{bytes:?}");
        }
        for bytes in ["\u{feff}tok", "a\r\nX-Admin: 1", "a\tb", " tok", "t\u{e9}k", "tok\0", "\u{7f}"] {
            assert_eq!(parse(bytes.as_bytes()), Err(Unusable::Illegal), "{bytes:?}");
        }
        assert_eq!(parse(&[0xff, 0xfe]), Err(Unusable::Illegal));
    }
}
