//! ZAPs whose names are normalized: what OpenZFS hashed and wrote, and what a map of normalized names would do.

#![allow(clippy::unwrap_used, reason = "a test file; its helpers fail the test that called them")]

use flate2::read::GzDecoder;
use serde_json::Value as Json;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use terrane_zap::{HashBits, NormFlags, hash};

fn unpacked(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/zap").join(name);
    let mut raw = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut raw).unwrap();
    raw
}

fn hex(json: &Json) -> u64 {
    u64::from_str_radix(json.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

fn bytes(json: &Json) -> Vec<u8> {
    let digits = json.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn hashes_of_normalized_names_are_the_listed_ones() {
    let listed: Json = serde_json::from_slice(&unpacked("normalized_hashes.json.gz")).unwrap();
    let cases = listed["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 105);
    for case in cases {
        let flags = NormFlags::parse(case["normflags"].as_u64().unwrap()).unwrap();
        let name = bytes(&case["name_hex"]);
        let whole = flags.normalize(&name).map(|name| hash::crc64(hex(&listed["salt"]), &name));
        let masked = whole.map(|whole| whole & HashBits::Bits28.mask());
        let expected = case["h28"].is_string().then(|| hex(&case["h28"]));
        assert_eq!(masked, expected, "{case}");
    }
}
