//! How fast weights stream through the product of a row, as a share of what a plain read takes. Run on
//! an idle machine: `cargo test --release --lib format::bandwidth -- --ignored --nocapture`

use std::hint::black_box;

use half::bf16;

use super::{
    super::{
        dot_tile::{Ahead, DotTile},
        panel,
        parallel::for_tasks,
        scratch::Aligned,
        tile::Total,
        view::View,
    },
    speed::{least, random},
    *,
};

/// One pass over packed weights.
struct Pass<'a, F: Format> {
    a: View<'a, f32>,
    panels: &'a [F::Word],
    threads: usize,
    what: What,
    /// The least of some passes.
    seconds: &'a mut f64,
}

#[derive(Clone, Copy)]
enum What {
    Read,
    Multiply,
}

impl<F: Format<Number = f32>> DotTask<F> for Pass<'_, F> {
    fn run<D: Dots<F>>(self, d: D) {
        let (m, depth) = (self.a.rows(), self.a.columns());
        let n_chunks = depth.div_ceil(F::CHUNK);
        let mut rows = Aligned::zeros(n_chunks * m * D::ROW_WORDS);
        pack_chunks(d, self.a, &mut rows);
        let words = F::column_words(depth) * D::PANEL;
        let n_panels = self.panels.len() / words;
        let bytes = size_of_val(self.panels);
        let times = (1 << 30) / bytes + 5;
        let n_tasks = if self.threads == 1 {
            1
        } else {
            4 * self.threads
        };
        *self.seconds = least(times, || {
            for_tasks(self.threads, n_tasks, |task| {
                let panels = n_panels * task / n_tasks..n_panels * (task + 1) / n_tasks;
                let panels = &self.panels[panels.start * words..panels.end * words];
                match self.what {
                    What::Read => d.run(Read(panels)),
                    What::Multiply => {
                        let mut totals = vec![0.0; m * D::PANEL];
                        for panel in panels.chunks_exact(words) {
                            multiply(d, depth, &rows, panel, &mut totals);
                        }
                    }
                }
            });
        });
    }
}

/// All sums of a panel and one tile of rows.
fn multiply<F: Format, D: Dots<F>>(
    d: D,
    depth: usize,
    rows: &[F::Word],
    panel: &[F::Word],
    totals: &mut [F::Number],
) {
    let m = totals.len() / D::PANEL;
    for chunk in 0..depth.div_ceil(F::CHUNK) {
        d.run(DotTile {
            rows: m,
            depth: (depth - chunk * F::CHUNK).min(F::CHUNK),
            a: &rows[chunk * m * D::ROW_WORDS..],
            b: &panel[chunk * F::CHUNK_WORDS * D::PANEL..],
            ahead: Ahead::Nothing,
            totals: &mut *totals,
            total: match chunk {
                0 => Total::New,
                _ => Total::Running,
            },
        });
    }
    black_box(totals);
}

/// Loads every vector and adds it to one of eight sums.
struct Read<'a, W>(&'a [W]);

impl<F: Format> DotTask<F> for Read<'_, F::Word> {
    #[inline(always)]
    fn run<D: Dots<F>>(self, d: D) {
        let v = d.vectors();
        let numbers: &[F::Number] = bytemuck::cast_slice(self.0);
        let lanes = D::PANEL / WIDTH;
        let mut sums = [v.splat(F::Number::ZERO); 8];
        for piece in numbers.chunks_exact(8 * lanes) {
            for (sum, x) in sums.iter_mut().zip(piece.chunks_exact(lanes)) {
                // SAFETY: this is a vector's numbers.
                *sum = v.add(*sum, unsafe { v.load(x.as_ptr()) });
            }
        }
        black_box(sums);
    }
}

fn shares<F: Format<Number = f32>>(name: &str) {
    let isa = Isa::best();
    for megabytes in [0.5, 8.0, 200.0] {
        let k = 768;
        let n = (megabytes * 1e6 / (4 * F::column_words(k)) as f64) as usize;
        let weight = random(n * k, 1);
        let b = View::row_major(&weight, n, k).transposed();
        let panels = panel::pack::<F, f32>(Aligned::empty(), isa, &[b], 2);
        for (threads, m) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)] {
            let a = random(m * k, 2);
            let per_second = |what| {
                let mut seconds = 0.0;
                let pass = Pass {
                    a: View::row_major(&a, m, k),
                    panels: &panels,
                    threads,
                    what,
                    seconds: &mut seconds,
                };
                F::run(isa, pass);
                1e-9 * size_of_val(&panels[..]) as f64 / seconds
            };
            let (read, multiplied) = (per_second(What::Read), per_second(What::Multiply));
            println!(
                "{name} {megabytes:5.1} MB, {threads} threads, {m} rows: {multiplied:6.1} of {read:6.1} GB/s ({:3.0} %)",
                100.0 * multiplied / read
            );
        }
    }
}

#[test]
#[ignore = "measures; needs an idle machine and a minute"]
fn weights_stream_as_fast_as_they_are_read() {
    shares::<f32>("f32");
    shares::<bf16>("bf16");
    shares::<i8>("int8");
}
