//! Products of few rows, which read panels in pairs, have one panel's bits at a time.

use half::{bf16, f16};

use super::*;
use crate::threads::with_team;

/// Compares the first `m` rows alone with the same rows among others, whose panels are read one at a time.
fn rows_by_themselves<F: WithKernel<Element = T>, T: Float<Acc = T>>(n: usize) {
    // A multiple of neither group nor chunk.
    let k = 2 * F::CHUNK + F::GROUP + 1;
    let rows = 7;
    let (a, gate, up): (Vec<T>, Vec<T>, Vec<T>) =
        (random(rows * k, 11), random(n * k, 12), random(n * k, 13));
    let view = |w| View::row_major(w, n, k).transposed();
    for isa in Isa::levels() {
        let memory = Aligned::empty;
        for packed in [
            PackedMatrix::<F>::new_in(memory(), on(isa, 1), F::Layout::default(), view(&gate)),
            PackedMatrix::<F>::gated_in(
                memory(),
                on(isa, 1),
                F::Layout::default(),
                view(&gate),
                view(&up),
            ),
        ] {
            let product = |m: usize, threads: usize| {
                let mut y = vec![T::ZERO; m * n];
                let a = View::row_major(&a[..m * k], m, k);
                let cpu = on(isa, threads);
                with_team(threads, || {
                    multiply_columns(cpu, Columns::Packed(&packed), a, &Epilogue::NONE, &mut y);
                });
                y
            };
            let together = product(rows, 1);
            for (m, threads) in [
                (1, 1),
                (2, 1),
                (3, 1),
                (4, 1),
                (5, 1),
                (1, 2),
                (2, 3),
                (3, 2),
                (4, 3),
            ] {
                let what = format_args!("{isa} {m} rows, {:?}", packed.halves());
                assert_same(&product(m, threads), &together[..m * n], what);
            }
        }
    }
}

#[test]
fn rows_have_the_same_bits_when_panels_are_read_in_pairs() {
    // Seven of the widest panels and a part of one; 72 panels, which are several runs.
    for n in [229, 2301] {
        rows_by_themselves::<f32, f32>(n);
        rows_by_themselves::<f64, f64>(n);
        rows_by_themselves::<f16, f32>(n);
        rows_by_themselves::<bf16, f32>(n);
        rows_by_themselves::<i8, f32>(n);
    }
}
