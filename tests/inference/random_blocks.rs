//! Blocks with random configurations, also outside the families: `drawn/properties.rs` holds for each.

use candle_blocks::candle_core::Device;

use crate::{
    cpu_only::cpu_only,
    device::device,
    double::has_f64,
    drawn::{
        Draws,
        properties::{self, Property},
    },
};

const CASES: u64 = 600;

/// Asserts that the property of layers on a device holds for every case, and applies to at least `least`.
#[track_caller]
fn assert_holds_on(device: &Device, property: Property, least: u64) {
    let (mut n, mut failures) = (0, Vec::new());
    for seed in 0..CASES {
        let (config, request) = Draws::new(seed).case();
        match property(&config, &request.on(device)) {
            Ok(applies) => n += u64::from(applies),
            Err(problem) => failures.push(format!(
                "{seed}: {problem}\n    {request:?}\n    {config:?}"
            )),
        }
    }
    let shown = failures[..failures.len().min(5)].join("\n");
    let n_failures = failures.len();
    assert!(failures.is_empty(), "{n_failures} of {CASES}:\n{shown}");
    assert!(n >= least, "of {n} cases only");
}

#[track_caller]
fn assert_holds(property: Property, least: u64) {
    let cpu = cpu_only("packed blocks, and slopes of a loss in f64");
    assert_holds_on(&cpu, property, least);
}

#[test]
fn a_packed_stack_is_its_layers() {
    assert_holds(properties::a_packed_stack_is_its_layers, CASES);
}

#[test]
fn padding_is_zero_in_what_a_packed_stack_returns() {
    assert_holds(
        properties::padding_is_zero_in_what_a_packed_stack_returns,
        21,
    );
}

#[test]
fn observation_changes_nothing() {
    assert_holds_on(&device(), properties::observation_changes_nothing, CASES);
}

#[test]
fn a_sequence_in_chunks_is_the_sequence() {
    if !has_f64("blocks in f64") {
        return;
    }
    assert_holds_on(
        &device(),
        properties::a_sequence_in_chunks_is_the_sequence,
        51,
    );
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_before_padding() {
    assert_holds_on(
        &device(),
        properties::a_sequence_has_the_same_bits_alone_and_before_padding,
        51,
    );
}

#[test]
fn half_types_are_the_function_rounded() {
    assert_holds(properties::half_types_are_the_function_rounded, CASES);
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    assert_holds(properties::gradients_are_the_slopes_of_the_loss, CASES);
}
