//! Attention against f64, and against itself in every circumstance that must not change a bit. Every level runs
//! the same checks.

mod cached;
mod case;
mod exact;
mod same_bits;
mod unseen;

use half::bf16;

use crate::{attention::attend::*, products::format::Format, vectors::isa::Isa};

/// Every level with every format.
fn ways() -> Vec<Arithmetic> {
    let levels = Isa::levels().into_iter();
    let ways =
        levels.flat_map(|isa| [Stored::F32, Stored::Bf16].map(|stored| Arithmetic { isa, stored }));
    ways.collect()
}

/// The fastest level, with the format in which most can go wrong.
fn best() -> Arithmetic {
    Arithmetic {
        isa: Isa::best(),
        stored: Stored::Bf16,
    }
}

impl Arithmetic {
    fn name(self) -> String {
        format!("{} {:?}", self.isa.name(), self.stored)
    }

    /// Positions in a chunk.
    fn chunk(self) -> usize {
        match self.stored {
            Stored::F32 => <f32 as Format>::CHUNK,
            Stored::Bf16 => <bf16 as Format>::CHUNK,
        }
    }
}

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
