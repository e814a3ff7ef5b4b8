//! Measures products' speed relative to the CPU's peak. Run on an idle machine: `cargo test --release -p
//! candle-blocks-kernels a_share_of_the_peak -- --ignored --nocapture`

use super::multiply::multiply_views as multiply;
use super::{Columns, Epilogue, PackedMatrix, View, WeightFormat, peak, tests::multiply_columns};
use crate::reference::{on, random};
use crate::{threads::with_team, timing::least, vectors::Isa};

#[test]
#[ignore = "a measurement: needs an idle machine and a minute"]
fn products_as_a_share_of_the_peak() {
    for isa in Isa::levels() {
        let peak = peak(on(isa, 1), WeightFormat::F32);
        println!("{isa}: {:.0} GFLOP/s per thread", peak * 1e-9);
        println!("  n x k, m, threads: packed, in place; µs (% of the peak)");
        for (n, k) in [
            (1536, 384),
            (384, 1536),
            (3072, 768),
            (768, 3072),
            (2001, 500),
        ] {
            let w: Vec<f32> = random(n * k, 0.0, 1.0, 1);
            let b = View::row_major(&w, n, k).transposed();
            let packed = PackedMatrix::<f32>::new(on(isa, 2), b);
            for m in [1, 4, 8, 13, 32, 100, 128, 512, 2048] {
                let a: Vec<f32> = random(m * k, 0.0, 1.0, 2);
                let a = View::row_major(&a, m, k);
                let mut y = vec![0.0; m * n];
                let operations = (2 * m * n * k) as f64;
                let times = (1e9 / operations) as usize + 5;
                for threads in [1, 2] {
                    let share = |t: f64| 100.0 * operations / t / (peak * threads as f64);
                    let prepacked = least(times, || {
                        multiply_columns(
                            on(isa, threads),
                            Columns::Packed(&packed),
                            a,
                            &Epilogue::NONE,
                            &mut y,
                        )
                    });
                    let in_place = least(times, || {
                        multiply(on(isa, threads), a, b, &Epilogue::NONE, &mut y)
                    });
                    println!(
                        "  {n:4}x{k:4} {m:4} {threads}: {:8.1} ({:3.0} %) {:8.1} ({:3.0} %)",
                        1e6 * prepacked,
                        share(prepacked),
                        1e6 * in_place,
                        share(in_place)
                    );
                }
            }
        }
    }
}

/// A training step's products: forward, the input's gradient, and the weight's gradient.
#[test]
#[ignore = "a measurement: needs an idle machine and a minute"]
fn products_in_training_as_a_share_of_the_peak() {
    let isa = Isa::best();
    let threads = 2;
    let peak = peak(on(isa, threads), WeightFormat::F32);
    println!("{isa}: {:.0} GFLOP/s", peak * 1e-9);
    println!("  rows, d_in -> d_out: forward, dx, dweight; µs (% of the peak)");
    for (rows, d_in, d_out) in [
        (1024, 768, 768),
        (1024, 768, 3072),
        (1024, 3072, 768),
        (512, 128, 512),
        (512, 512, 128),
        (1000, 500, 2001),
    ] {
        let matrix =
            |rows: usize, columns: usize, seed| random::<f32>(rows * columns, 0.0, 1.0, seed);
        let (x, dy, w) = (
            matrix(rows, d_in, 1),
            matrix(rows, d_out, 2),
            matrix(d_out, d_in, 3),
        );
        let x = View::row_major(&x, rows, d_in);
        let dy = View::row_major(&dy, rows, d_out);
        let w = View::row_major(&w, d_out, d_in);
        let operations = (2 * rows * d_in * d_out) as f64;
        let times = (2e10 / operations) as usize + 5;
        print!("  {rows:4}, {d_in:4} -> {d_out:4}:");
        for (a, b) in [(x, w.transposed()), (dy, w), (dy.transposed(), x)] {
            let mut y = vec![0.0; a.rows() * b.columns()];
            let time = least(times, || {
                with_team(threads, || {
                    multiply(on(isa, threads), a, b, &Epilogue::NONE, &mut y)
                });
            });
            let share = 100.0 * operations / time / peak;
            print!(" {:8.1} ({share:3.0} %)", 1e6 * time);
        }
        println!();
    }
}
