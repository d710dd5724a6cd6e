//! The caller's bearer token: found in a request's head, named by its hash, dated by its own claim.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, header};
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Longest token that is looked at, in bytes.
const TOKEN_MAX: usize = 16 * 1024;

/// SHA-256 of a token: the token itself is never kept.
pub type TokenHash = [u8; 32];

/// What a request says about its caller.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Credential<'a> {
    /// Nothing, or something of another scheme.
    Missing,
    /// Something that cannot be one bearer token.
    Malformed,
    /// A bearer token, unchecked.
    Token(&'a str),
}

/// Finds the bearer token in a request's head.
pub fn find(headers: &HeaderMap) -> Credential<'_> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, more) = (values.next(), values.next());
    let Some(value) = value else { return Credential::Missing };
    if more.is_some() {
        return Credential::Malformed;
    }
    let Ok(text) = value.to_str() else { return Credential::Malformed };
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("Bearer") {
        return Credential::Missing;
    }
    let token = token.trim_matches(' ');
    if (1..=TOKEN_MAX).contains(&token.len()) && are_token_bytes(token) {
        Credential::Token(token)
    } else {
        Credential::Malformed
    }
}

/// Whether all bytes are those of `b64token` (RFC 6750 section 2.1). Looks at all of them, whatever the first is: without branches
/// the compiler takes many at once, and nearly all tokens are good.
fn are_token_bytes(token: &str) -> bool {
    token.bytes().fold(true, |good, byte| good & is_token_byte(byte))
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=')
}

/// The name under which what is known about a token is kept.
pub fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// When a token ends by its own claim, in seconds since the epoch; `None` when it is no JWT or has no such claim.
///
/// The signature is not checked here: only ask this of a token that the API server has accepted.
pub fn expiry(token: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let payload = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    // `exp` is a JSON number that may have a fraction; the cast saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Some(claims.exp as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())).collect()
    }

    #[test]
    fn a_bearer_token_is_found_whatever_the_case_of_its_scheme() {
        for value in ["Bearer a.b-c_d", "bearer a.b-c_d", "BEARER  a.b-c_d "] {
            assert!(find(&head(&[value])) == Credential::Token("a.b-c_d"), "{value}");
        }
    }

    #[test]
    fn no_header_and_other_schemes_count_as_missing() {
        assert!(find(&head(&[])) == Credential::Missing);
        assert!(find(&head(&["Basic YTpi"])) == Credential::Missing);
    }

    #[test]
    fn what_cannot_be_one_token_is_malformed() {
        let long = format!("Bearer {}", "a".repeat(TOKEN_MAX + 1));
        for values in [
            &["Bearer"][..],
            &["Bearer "],
            &["Bearer a b"],
            &["Bearer a,b"],
            &["Bearer a", "Bearer a"],
            &[&long],
        ] {
            assert!(find(&head(values)) == Credential::Malformed, "{values:?}");
        }
    }

    #[test]
    fn the_expiry_is_the_claim_of_a_jwt() {
        let jwt = |payload: &str| format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(payload));
        assert_eq!(expiry(&jwt(r#"{"exp":1900000000,"sub":"a"}"#)), Some(1_900_000_000));
        assert_eq!(expiry(&jwt(r#"{"exp":12.75}"#)), Some(12));
        assert_eq!(expiry(&jwt(r#"{"exp":-5}"#)), Some(0));
        assert_eq!(expiry(&jwt(r#"{"sub":"a"}"#)), None);
        assert_eq!(expiry("opaque"), None);
        assert_eq!(expiry("a.!!!.c"), None);
    }

    #[test]
    fn different_tokens_have_different_hashes() {
        assert_ne!(hash("a"), hash("b"));
        assert_eq!(hash("a"), hash("a"));
    }
}
