//! Attention against f64, and against itself under every circumstance that must not show. Every level
//! of instructions runs the same checks.

mod cached;
mod case;
mod exact;
mod same_bits;
mod unseen;

use super::*;

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differ = |i: &usize| found[*i].to_bits() != expected[*i].to_bits();
    let wrong: Vec<usize> = (0..found.len()).filter(differ).collect();
    if let Some(&first) = wrong.first() {
        panic!(
            "{what}: {} of {} differ, the first {first}: {:e}, expected {:e}",
            wrong.len(),
            found.len(),
            found[first],
            expected[first]
        );
    }
}
