//! The text of a credential, from the bytes of a Secret. The value itself never reaches an error.

/// Why bytes are no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Nothing is left once trailing white space is gone.
    #[error("is empty")]
    Empty,
    /// It holds what a header must not carry: control characters, a byte order mark, anything outside visible ASCII, or
    /// a space at its beginning.
    #[error(
        "holds characters that a header cannot carry (allowed are visible ASCII characters, and spaces between them)"
    )]
    Illegal,
}

/// The credential in `bytes`. Trailing ASCII white space is stripped, since `echo token |` leaves a newline; anything else
/// that a header cannot carry is refused rather than sent or changed.
pub fn parse(bytes: &[u8]) -> Result<&str, Unusable> {
    let kept = bytes.trim_ascii_end();
    if kept.is_empty() {
        return Err(Unusable::Empty);
    }
    let legal = !kept.starts_with(b" ") && kept.iter().all(|byte| matches!(byte, b' '..=b'~'));
    std::str::from_utf8(kept).ok().filter(|_| legal).ok_or(Unusable::Illegal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_white_space_is_stripped_and_nothing_else() {
        for bytes in ["tok", "tok\n", "tok\r\n", "tok \t\n"] {
            assert_eq!(parse(bytes.as_bytes()), Ok("tok"), "{bytes:?}");
        }
        assert_eq!(parse(b"Basic dG9r"), Ok("Basic dG9r"));
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
