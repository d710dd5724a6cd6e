//! Bounds on texts that go into status and Events.

/// Longest message of a condition in bytes: a status stays small whatever an upstream or a kubelet says.
pub const MESSAGE_BYTES: usize = 1024;
/// Longest `lastError` of a binding in bytes.
pub const ERROR_BYTES: usize = 256;

/// `text` cut to at most `max` bytes, on a character boundary, with an ellipsis where something was left out.
pub fn clip(text: &str, max: usize) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max.saturating_sub(ELLIPSIS.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let kept = text.get(..end).unwrap_or_default();
    if max < ELLIPSIS.len() { kept.to_owned() } else { format!("{kept}{ELLIPSIS}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_stays_as_it_is() {
        assert_eq!(clip("twelve bytes", 12), "twelve bytes");
    }

    #[test]
    fn a_long_text_is_cut_on_a_character_boundary() {
        assert_eq!(clip("日本語テキスト", 10), "日本…");
        for max in 0..30 {
            assert!(clip("日本語テキスト", max).len() <= max, "{max}");
        }
    }
}
