//! Every tensor type of GGUF files, on random blocks: the bits are those that the package `gguf` and ggml's library give.

use std::collections::BTreeMap;
use std::fs;

use candle_blocks::Checkpoint;

use super::quantized::{hash, numbers};
use crate::weights::{is_present, weights};

#[test]
fn every_block_has_the_bits_that_gguf_s_own_package_gives_it() {
    if !is_present("gguf-types") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("gguf-types/model.gguf")).unwrap();
    let json = fs::read(weights("gguf-types/expected.json")).unwrap();
    let expected: BTreeMap<String, Vec<Option<String>>> = serde_json::from_slice(&json).unwrap();
    assert_eq!(expected.len(), 34);
    for (name, hashes) in expected {
        let (mut n, n_blocks) = (0, hashes.len());
        for (row, expected) in hashes.into_iter().enumerate() {
            let place = format!("{name}, block {row}");
            let rows = row..row + 1;
            let found = checkpoint
                .files()
                .read_rows(&name, std::slice::from_ref(&rows));
            match (found, expected) {
                (Ok(found), Some(expected)) => {
                    assert_eq!(hash(&numbers(&found)), expected, "{place}");
                    n += 1;
                }
                (Err(error), None) => {
                    let message = error.to_string();
                    assert!(message.contains("expected finite values"), "{message}");
                }
                (found, expected) => panic!("{place}: {found:?}, expected {expected:?}"),
            }
        }
        assert!(n * 10 > n_blocks * 6, "{name}: only {n} of {n_blocks}");
    }
}
