//! Replaces spans of a text and nothing else.

use std::ops::Range;

/// `text` with each span replaced by its raw JSON. Spans come from tokens of the same text, so they do not overlap;
/// their order does not matter. A span that does not lie in `text`, or overlaps an earlier one, is left alone.
pub fn splice<const N: usize>(text: &str, mut replacements: [(Range<usize>, &str); N]) -> String {
    replacements.sort_by_key(|(span, _)| span.start);
    let grown: usize = replacements.iter().map(|(_, raw)| raw.len()).sum();
    let mut spliced = String::with_capacity(text.len() + grown);
    let mut copied = 0;
    for (span, raw) in replacements {
        let Some(between) = text.get(copied..span.start).filter(|_| text.get(span.clone()).is_some()) else {
            continue;
        };
        spliced.push_str(between);
        spliced.push_str(raw);
        copied = span.end;
    }
    spliced.push_str(text.get(copied..).unwrap_or_default());
    spliced
}
