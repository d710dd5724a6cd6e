//! The term of whoever asks, from the header that every control request carries.

use super::Control;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use berth_wire::TERM_HEADER;
use http::StatusCode;
use http::request::Parts;

/// The term of a request that was not refused for it. It is taken before anything else is read, so that even a request that
/// fails afterwards shuts out lower terms; what a request does checks it again, under the registry's lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term(pub u64);

impl FromRequestParts<Control> for Term {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, control: &Control) -> Result<Self, Response> {
        let Some(term) = parts.headers.get(TERM_HEADER).and_then(|value| parse(value.as_bytes())) else {
            let text = format!(
                "the header {TERM_HEADER} must hold the term of the sender's lease, a decimal number\n"
            );
            return Err((StatusCode::BAD_REQUEST, text).into_response());
        };
        control.registry.check_term(term).map_err(super::conflict)?;
        Ok(Self(term))
    }
}

/// Digits only: `u64`'s own parser takes a sign too.
fn parse(value: &[u8]) -> Option<u64> {
    let digits = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_a_decimal_number_and_nothing_else() {
        assert_eq!([parse(b"0"), parse(b"18446744073709551615")], [Some(0), Some(u64::MAX)]);
        for value in ["", "+7", "-1", " 7", "7 ", "7.0", "0x7", "18446744073709551616", "seven"] {
            assert_eq!(parse(value.as_bytes()), None, "{value:?}");
        }
    }
}
