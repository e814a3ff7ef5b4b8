//! A product's bits do not depend on batch, threads or callers.

use super::*;
use crate::products::pack_rows::PACK_PARALLEL_FROM;

#[test]
fn a_row_has_the_same_bits_alone_and_anywhere_among_others() {
    let (m, n, k) = if cfg!(miri) {
        (6, 9, 130)
    } else {
        (61, 77, 300)
    };
    let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 5), random(n * k, 6));
    let b = View::row_major(&w, n, k).transposed();
    for isa in Isa::levels() {
        let packed = PackedMatrix::new(on(isa, 1), b);
        let together = product(isa, View::row_major(&a, m, k), b, 2);
        // 17 is coprime to both m, so that every row is visited, each time at another place.
        let order: Vec<usize> = (0..m).map(|i| (i * 17 + 3) % m).collect();
        let moved: Vec<f32> = order
            .iter()
            .flat_map(|&i| &a[i * k..][..k])
            .copied()
            .collect();
        let moved = product(isa, View::row_major(&moved, m, k), b, 2);
        for (at, &i) in order.iter().enumerate() {
            let row = View::row_major(&a[i * k..][..k], 1, k);
            let expected = &together[i * n..][..n];
            let found = &moved[at * n..][..n];
            assert_same(found, expected, format_args!("row {i} at {at}"));
            let found = &product(isa, row, b, 1);
            assert_same(found, expected, format_args!("row {i} alone"));
            let found = &packed_product(row, &packed, 1);
            assert_same(found, expected, format_args!("row {i} packed"));
        }
    }
}

/// Sizes above the threshold for threads: one row, a few, many, and more than a block.
fn sizes_for_threads() -> Vec<(usize, usize, usize)> {
    if cfg!(miri) {
        return vec![];
    }
    assert!(3 * 1000 * 200 > parallel::worthwhile());
    const { assert!(1024 * 512 > PACK_PARALLEL_FROM) };
    vec![
        (1, 2000, 300),
        (3, 1000, 200),
        (100, 20, 300),
        (BLOCK_ROWS - 1, 40, 130),
        (BLOCK_ROWS + 1, 40, 500),
        (2 * BLOCK_ROWS + 1, 33, 257),
    ]
}

#[test]
fn the_thread_count_does_not_change_a_bit() {
    for (m, n, k) in sizes_for_threads() {
        let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 7), random(n * k, 8));
        let (a, b) = (
            View::row_major(&a, m, k),
            View::row_major(&w, n, k).transposed(),
        );
        for isa in Isa::levels() {
            let packed = PackedMatrix::new(on(isa, 3), b);
            let expected = product(isa, a, b, 1);
            for threads in 1..=4 {
                let what = format_args!("{isa} {m}x{n}x{k}, {threads} threads");
                assert_same(&product(isa, a, b, threads), &expected, what);
                assert_same(&packed_product(a, &packed, threads), &expected, what);
            }
        }
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no threads")]
fn concurrent_and_nested_callers_get_the_same_bits() {
    use rayon::prelude::*;
    for (m, n, k) in sizes_for_threads() {
        let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 9), random(n * k, 10));
        let (a, b) = (
            View::row_major(&a, m, k),
            View::row_major(&w, n, k).transposed(),
        );
        let isa = Isa::best();
        let packed = PackedMatrix::new(on(isa, 2), b);
        let expected = product(isa, a, b, 1);
        let check = |how: &str| {
            let what = format_args!("{m}x{n}x{k} {how}");
            assert_same(&product(isa, a, b, 3), &expected, what);
            assert_same(&packed_product(a, &packed, 3), &expected, what);
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| check("from threads"));
            }
        });
        (0..6).into_par_iter().for_each(|_| check("within rayon"));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .unwrap();
        pool.install(|| check("within a pool of one"));
    }
}
