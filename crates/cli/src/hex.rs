//! Bytes as hexadecimal text: in answers, which are JSON, and as a dump for people.

use std::fmt::Write;

const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Bytes in a line of a dump.
const LINE_BYTES: usize = 16;

/// Two digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        out.push(digit(byte >> 4));
        out.push(digit(*byte));
    }
    out
}

/// The bytes of such a text. `None`: it is none.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(value(*high)? << 4 | value(*low)?));
    bytes.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())
}

/// Lines as xxd prints them. The first byte has the number `from`.
pub fn dump(bytes: &[u8], from: u64) -> String {
    let mut out = String::new();
    for (line, bytes) in bytes.chunks(LINE_BYTES).enumerate() {
        let at = from.saturating_add((line * LINE_BYTES) as u64);
        let mut pairs = String::new();
        for pair in bytes.chunks(2) {
            pairs.push_str(&encode(pair));
            pairs.push(' ');
        }
        let shown = |byte: &u8| if matches!(byte, 0x20..=0x7e) { char::from(*byte) } else { '.' };
        let text: String = bytes.iter().map(shown).collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{at:08x}: {pairs:<40} {text}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_convert_both_ways() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&bytes)), Some(bytes));
        assert_eq!(decode("00ff7E"), Some(vec![0, 255, 126]));
        for wrong in ["0", "0g", "\u{e4}", "00 1"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_dump_is_that_of_xxd() {
        let text = dump(b"TERRZONE\0\x01\x02\xfe~\x7f  tail!", 0x20);
        let expected = "\
            00000020: 5445 5252 5a4f 4e45 0001 02fe 7e7f 2020  TERRZONE....~.  \n\
            00000030: 7461 696c 21                             tail!\n";
        assert_eq!(text, expected);
        assert_eq!(dump(b"", 0), "");
    }
}
