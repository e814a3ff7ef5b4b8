//! Blocks with any configuration: packed, cached, padded, observed and in half types they compute the same function.

#![no_main]

#[path = "../../tests/inference/drawn/mod.rs"]
#[allow(dead_code)]
mod drawn;
#[path = "../../tests/shared/small.rs"]
#[allow(dead_code)]
mod small;

use drawn::{
    Draws,
    properties::{self, Property},
};

/// All properties except gradients: a search would lead to kinks, where their differences are large.
const PROPERTIES: [Property; 6] = [
    properties::a_packed_stack_is_its_layers,
    properties::padding_is_zero_in_what_a_packed_stack_returns,
    properties::observation_changes_nothing,
    properties::a_sequence_in_chunks_is_the_sequence,
    properties::a_sequence_has_the_same_bits_alone_and_before_padding,
    properties::half_types_are_the_function_rounded,
];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&which, choices)) = data.split_first() else {
        return;
    };
    let (config, request) = Draws::of_bytes(choices).case();
    if let Err(problem) = PROPERTIES[usize::from(which) % PROPERTIES.len()](&config, &request) {
        panic!("{problem}\n    {request:?}\n    {config:?}");
    }
});
