//! The Range header (RFC 9110, section 14): one range. A request for several ranges gets the whole tensor.

use std::ops::Range;

/// The range of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Everything: there is no header, or an ignored one.
    All,
    /// These bytes.
    Part(Range<u64>),
    /// A range outside the tensor.
    Nothing,
}

/// Parses the header of a request for `len` bytes.
pub(super) fn wanted(header: &str, len: u64) -> Wanted {
    let Some((unit, range)) = header.split_once('=') else { return Wanted::All };
    let Some((first, last)) = range.trim().split_once('-') else { return Wanted::All };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Wanted::All;
    }
    // Digits only: `parse` would take a sign.
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true if text.is_empty() => Some(None),
        true => Some(Some(text.parse().unwrap_or(u64::MAX))),
        false => None,
    };
    let (Some(first), Some(last)) = (number(first), number(last)) else { return Wanted::All };
    let range = match (first, last) {
        (None, None) => return Wanted::All,
        (Some(first), Some(last)) if first > last => return Wanted::All,
        (None, Some(suffix)) => len.saturating_sub(suffix)..len,
        (Some(first), last) => first..last.map_or(len, |last| last.saturating_add(1).min(len)),
    };
    if range.is_empty() { Wanted::Nothing } else { Wanted::Part(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_as_in_rfc_9110() {
        for (header, expected) in [
            ("bytes=0-0", Wanted::Part(0..1)),
            ("bytes=2-5", Wanted::Part(2..6)),
            ("Bytes = 2-5", Wanted::Part(2..6)),
            ("bytes=9-99999999999999999999", Wanted::Part(9..10)),
            ("bytes=4-", Wanted::Part(4..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-30", Wanted::Part(0..10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=10-12", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=5-2", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("bytes=-", Wanted::All),
            ("bytes=+1-2", Wanted::All),
            ("bytes=x", Wanted::All),
            ("rows=0-1", Wanted::All),
            ("", Wanted::All),
        ] {
            assert_eq!(wanted(header, 10), expected, "{header:?}");
        }
        assert_eq!(wanted("bytes=0-", 0), Wanted::Nothing);
    }
}
