//! Bytes in messages: two hexadecimal digits for each byte.

/// Encodes bytes as hexadecimal digits.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes bytes; `None` unless `hex` consists of pairs of hexadecimal digits.
pub fn decode(hex: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let digits = rest.is_empty() && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.then(|| pairs.iter().map(byte).collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bytes_decode_and_other_text_is_refused() {
        assert_eq!(encode(&[0, 255, 16]), "00ff10");
        assert_eq!(decode("00ff10"), Some(vec![0, 255, 16]));
        assert_eq!((decode("0"), decode("0g"), decode("+1"), decode("é")), (None, None, None, None));
    }
}
