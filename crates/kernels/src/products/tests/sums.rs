//! Products that are added to what their destination holds.

use super::*;
use crate::products::{CHUNK, add_product};

/// Checks that the chunks' products are added one by one, whichever rows and columns share a tile, and wherever the
/// totals lie.
fn check<T: Float>() {
    let sizes: &[(usize, usize, usize)] = if cfg!(miri) {
        &[(3, 9, 130), (7, 16, 130)]
    } else {
        &[
            (1, 40, 300),
            (4, 64, 130),
            (5, 33, 0),
            (61, 64, 300),
            (128, 512, 64),
            (130, 200, 257),
            (BLOCK_ROWS + 44, 64, 128),
            (BLOCK_ROWS + 44, 77, 300),
        ]
    };
    for (&(m, n, k), isa) in sizes
        .iter()
        .flat_map(|of| Isa::levels().into_iter().map(move |isa| (of, isa)))
    {
        let (a, w): (Vec<T>, Vec<T>) = (random(m * k, 5), random(n * k, 6));
        let before: Vec<T> = random(m * n, 7);
        let mut expected = before.clone();
        for start in (0..k).step_by(CHUNK) {
            let depth = CHUNK.min(k - start);
            let a = View::new(&a[start..], (m, depth), (k, 1));
            let b = View::new(&w[start..], (depth, n), (1, k));
            let of_chunk = product(isa, a, b, 1);
            expected
                .iter_mut()
                .zip(of_chunk)
                .for_each(|(sum, x)| *sum += x);
        }
        for threads in [1, 2] {
            let mut y = before.clone();
            let (a, b) = (
                View::row_major(&a, m, k),
                View::row_major(&w, n, k).transposed(),
            );
            add_product(on(isa, threads), a, b, &mut y);
            let case = format_args!("{isa}, {m} x {n} x {k}, {threads} threads");
            assert_same(&y, &expected, case);
        }
    }
}

#[test]
fn a_product_is_added_chunk_by_chunk() {
    check::<f32>();
    check::<f64>();
}
