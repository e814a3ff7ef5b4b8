//! The speed of each format as a share of the CPU's peak. Run on an idle machine:
//! `cargo test --release --lib format::speed -- --ignored --nocapture --test-threads 1`

use std::hint::black_box;

use half::bf16;

use crate::{memory::scratch::Aligned, products::{pack_panels as panel, dot_tile::{Ahead, DotTile}, format::*, peak::operations_per_second, tile::Total, view::View}, reference::normal, timing::least};

/// A product of packed operands in the order of a block of a larger one: panel by panel, with all rows.
struct Blocks<'a, F: Format> {
    a: View<'a, f32>,
    panels: &'a Aligned<F::Word>,
    columns: usize,
    seconds: &'a mut Seconds,
}

/// Seconds that packing the rows takes, and multiplying them.
#[derive(Clone, Copy, Default)]
struct Seconds {
    packing: f64,
    product: f64,
}

impl<F: Format<Number = f32>> DotTask<F> for Blocks<'_, F> {
    fn run<D: Dots<F>>(self, d: D) {
        let (m, depth) = (self.a.rows(), self.a.columns());
        let n_chunks = depth.div_ceil(F::CHUNK);
        let mut rows = Aligned::zeros(n_chunks * m * D::ROW_WORDS);
        let operations = (2 * m * self.columns * depth) as f64;
        let words = F::column_words(depth) * D::PANEL;
        let times = (1e9 / operations) as usize + 20;
        self.seconds.packing = least(times, || {
            pack_chunks(d, self.a, &mut rows);
        });
        let mut totals = Aligned::<f32>::zeros(m * D::PANEL);
        let n_tiles = m.div_ceil(D::ROWS);
        self.seconds.product = least(times, || {
            for panel in self.panels.chunks_exact(words) {
                for chunk in 0..n_chunks {
                    for tile in 0..n_tiles {
                        let tile_rows = m * tile / n_tiles..m * (tile + 1) / n_tiles;
                        d.run(DotTile {
                            rows: tile_rows.len(),
                            depth: (depth - chunk * F::CHUNK).min(F::CHUNK),
                            a: &rows[(chunk * m + tile_rows.start) * D::ROW_WORDS..],
                            b: &panel[chunk * F::CHUNK_WORDS * D::PANEL..],
                            ahead: Ahead::Nothing,
                            totals: &mut totals[tile_rows.start * D::PANEL..],
                            total: match chunk {
                                0 => Total::New,
                                _ => Total::Running,
                            },
                        });
                    }
                }
            }
            black_box(&totals);
        });
    }
}

pub fn random(n: usize, seed: u64) -> Vec<f32> {
    normal(n, 0.0, 1.0, seed)
        .into_iter()
        .map(|x| x as f32)
        .collect()
}

fn shares<F: Format<Number = f32>>(name: &str) {
    for isa in Isa::levels() {
        let peak = operations_per_second::<F>(isa, 1);
        let per_second = peak * 1e-9;
        println!("{name} {}: {per_second:.0} G/s per thread", isa.name());
        // Few columns, so that a run is over before another process takes its place.
        for (n, k) in [(256, 768), (128, 3072)] {
            let w = random(n * k, 1);
            let b = View::row_major(&w, n, k).transposed();
            let panels = panel::pack::<F, f32>(Aligned::empty(), isa, &[b], 1);
            for m in [1, 4, 13, 32, 128, 512] {
                let a = random(m * k, 2);
                let mut seconds = Seconds::default();
                let blocks = Blocks {
                    a: View::row_major(&a, m, k),
                    panels: &panels,
                    columns: n,
                    seconds: &mut seconds,
                };
                F::run(isa, blocks);
                let Seconds { packing, product } = seconds;
                let per_second = (2 * m * n * k) as f64 / product;
                println!(
                    "  {n:4}x{k:4} {m:4}: {:4.0} G/s ({:3.0} %); packing the rows takes as long as {:2.0} columns",
                    per_second * 1e-9,
                    100.0 * per_second / peak,
                    n as f64 * packing / product
                );
            }
        }
    }
}

#[test]
#[ignore = "measures; needs an idle machine"]
fn products_as_a_share_of_the_peak() {
    shares::<f32>("f32");
    shares::<bf16>("bf16");
    shares::<i8>("int8");
}
