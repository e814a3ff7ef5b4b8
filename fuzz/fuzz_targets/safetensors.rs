//! A safetensors file: accepted exactly when the `safetensors` crate accepts it, with the same tensors.

#![no_main]

use candle_blocks_fuzz::hostile;

#[path = "../../tests/shared/judged_by_safetensors.rs"]
mod judged_by_safetensors;

libfuzzer_sys::fuzz_target!(|data: &[u8]| judged_by_safetensors::agrees_with_the_crate(data));
