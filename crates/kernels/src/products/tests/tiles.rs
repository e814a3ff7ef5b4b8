//! Tile registers belong to the caller: a product restores their configuration before it returns.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::bf16;

use super::*;
use crate::products::{Ahead, DotTiles, PanelChunk, Total, Totals};
use crate::threads::with_team;
use crate::vectors::amx_emulated::AmxEmulated;
use crate::vectors::tiles::{TileShapes, Tiles};

/// Returns the emulated instruction set, and its tiles.
fn emulated() -> Option<(Isa, AmxEmulated)> {
    let level = Isa::named("amx_emulated");
    let said = level.inspect_err(|error| println!("left out: {error}"));
    Some((said.ok()?, AmxEmulated::new()?))
}

/// Computes a product in a thread team.
fn product(isa: Isa, m: usize, threads: usize) {
    let (n, k) = (100, 700);
    let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 1), random(n * k, 2));
    let b = View::row_major(&w, n, k).transposed();
    let packed = PackedMatrix::<bf16>::new(on(isa, 1), b);
    let mut y = vec![0.0; m * n];
    let a = View::row_major(&a, m, k);
    let columns = Columns::Packed(&packed);
    with_team(threads, || {
        multiply_columns(on(isa, threads), columns, a, &Epilogue::NONE, &mut y);
    });
}

#[test]
fn no_thread_keeps_tiles_configured() {
    let Some((isa, tiles)) = emulated() else {
        return;
    };
    for m in [1, 2, 5, 40, 200, 300] {
        product(isa, m, 3);
        assert_eq!(tiles.shapes(), TileShapes::NONE);
        let of_pool = rayon::broadcast(|_| tiles.shapes());
        assert!(
            of_pool.iter().all(|shapes| *shapes == TileShapes::NONE),
            "{m}"
        );
    }
}

#[test]
fn tiles_that_the_caller_configured_are_configured_after_a_product() {
    let Some((isa, tiles)) = emulated() else {
        return;
    };
    let own = TileShapes::of_rows([1, 2, 3, 4, 5, 6, 7, 8]);
    // SAFETY: shapes of `of_rows`.
    unsafe { tiles.configure(&own) };
    product(isa, 40, 1);
    assert_eq!(tiles.shapes(), own);
    tiles.release();
}

#[test]
fn a_panic_leaves_no_tiles_configured() {
    let Some((isa, tiles)) = emulated() else {
        return;
    };
    let kernel = bf16::kernel(isa);
    let panics = || kernel.with_tiles(5, &mut || panic!("planted"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(tiles.shapes(), TileShapes::NONE);
}

#[test]
fn a_block_whose_rows_are_not_configured_is_refused() {
    let Some((isa, _)) = emulated() else { return };
    let kernel = bf16::kernel(isa);
    let (a, b) = (vec![0; 16 * 128], vec![0; 32 * 16]);
    let mut totals = vec![0.0; 16 * 32];
    let mut multiply = |rows| {
        kernel.multiply(DotTiles {
            rows,
            depth: 32,
            a: &a,
            b: PanelChunk::packed(&[], &b),
            layout: (),
            ahead: Ahead::NOTHING,
            totals: Totals::contiguous(&mut totals, 32),
            total: Total::New,
        });
    };
    let mut refused = |rows| catch_unwind(AssertUnwindSafe(|| multiply(rows))).is_err();
    assert!(refused(16) && refused(3));
    // 35 rows: two whole blocks, and one of three rows. Within it, a block of one row.
    kernel.with_tiles(35, &mut || {
        assert!(!refused(16) && !refused(3));
        assert!(refused(4) && refused(2));
        kernel.with_tiles(1, &mut || assert!(!refused(1) && refused(3)));
        assert!(!refused(3) && refused(1));
    });
    assert!(refused(16) && refused(3));
}
