//! Measures each format's speed relative to the CPU's peak. Run on an idle machine: `cargo test --release -p
//! candle-blocks-kernels formats::speed -- --ignored --nocapture --test-threads 1`

use std::hint::black_box;

use half::{bf16, f16};

use super::bandwidth::of;
use super::group_scales::{E2M1, GroupScales, NON_LINEAR, NON_LINEAR_ZERO, ScaleLayout, ScaleType};
use super::quantized::Quantized;
use crate::products::{
    Ahead, DotTiles, Kernel, Total, Totals, View, WeightFormat, Widen, WithKernel,
    pack_panels::pack_panels, pack_rows::pack_rows, panel::for_tiles, peak,
};
use crate::reference::{on, random};
use crate::{memory::Aligned, timing::least, vectors::Isa};

/// Returns the seconds for packing the rows, and for multiplying them in order, as a larger product does for one
/// block: panel by panel, with all rows.
fn block<F: WithKernel<Element = f32>>(
    (kernel, layout): (&dyn Kernel<F>, F::Layout),
    a: View<f32>,
    panels: &[F::Word],
    columns: usize,
) -> (f64, f64) {
    let (m, depth) = (a.rows(), a.columns());
    let n_chunks = depth.div_ceil(F::CHUNK);
    let chunks = kernel.chunks(layout);
    let row_words = chunks.words;
    let mut rows = Aligned::zeros(n_chunks * m * row_words);
    let operations = (2 * m * columns * depth) as f64;
    let words = F::column_words(layout, depth) * kernel.panel();
    let times = (1e9 / operations) as usize + 20;
    let packing = least(times, || pack_rows(kernel, chunks, a, 0..m, &mut rows, 1));
    let mut totals = Aligned::<f32>::zeros(m * kernel.panel());
    let mut to = Aligned::<F::Word>::zeros(kernel.widened().all());
    let n_tiles = m.div_ceil(kernel.rows());
    let mut all_panels = || {
        for panel in panels.chunks_exact(words) {
            for chunk in 0..n_chunks {
                let depth = (depth - chunk * F::CHUNK).min(F::CHUNK);
                let words = &panel[chunk * F::chunk_words(layout, F::CHUNK) * kernel.panel()..];
                let words = &words[..F::chunk_words(layout, depth) * kernel.panel()];
                let (scales, values) =
                    words.split_at(F::scale_words(layout, depth) * kernel.panel());
                let b = Widen {
                    scales,
                    values,
                    depth,
                    layout,
                    to: &mut to,
                };
                let b = for_tiles(kernel, n_tiles, b);
                kernel.multiply(DotTiles {
                    rows: m,
                    depth,
                    a: &rows[chunk * m * row_words..],
                    layout,
                    b,
                    ahead: Ahead::NOTHING,
                    totals: Totals::contiguous(&mut totals, kernel.panel()),
                    total: Total::New.of_chunk(chunk),
                });
            }
        }
        black_box(&totals);
    };
    let mut product = f64::INFINITY;
    kernel.with_tiles(m, &mut || product = least(times, &mut all_panels));
    (packing, product)
}

fn shares<F: WithKernel<Element = f32>>(name: &str, format: WeightFormat, layout: F::Layout) {
    for isa in Isa::levels() {
        let peak = peak(on(isa, 1), format);
        let kernel = &*F::kernel(isa);
        let per_second = peak * 1e-9;
        println!("{name} {isa}: {per_second:.0} G/s per thread");
        // Few columns, so that a run ends before the scheduler interrupts it.
        for (n, k) in [(256, 768), (128, 3072)] {
            let w = random(n * k, 0.0, 1.0, 1);
            let b = View::row_major(&w, n, k).transposed();
            let panels = match F::FROM_FLOATS {
                true => pack_panels(Aligned::empty(), kernel, layout, &[b], 1),
                // The contents do not matter, but for subnormal values.
                false => {
                    let mut words = Aligned::<F::Word>::zeros(n * F::column_words(layout, k));
                    bytemuck::cast_slice_mut(&mut words).fill(0x3c_u8);
                    words
                }
            };
            for m in [1, 4, 13, 32, 128, 512] {
                let a = random(m * k, 0.0, 1.0, 2);
                let a = View::row_major(&a, m, k);
                let (packing, product) = block::<F>((kernel, layout), a, &panels, n);
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
#[ignore = "a measurement: needs an idle machine"]
fn products_as_a_share_of_the_peak() {
    shares::<f32>("f32", WeightFormat::F32, ());
    shares::<f16>("f16", WeightFormat::F16, ());
    shares::<bf16>("bf16", WeightFormat::Bf16, ());
    shares::<i8>("int8", WeightFormat::Int8, ());
    let zero = |zero| GroupScales::Zero {
        scales: ScaleType::F16,
        zero,
    };
    // Their peak is that of int4.
    let (as_32, as_128) = (WeightFormat::Int4By32, WeightFormat::Int4By128);
    shares::<Quantized<2>>("Q2_K", as_32, of(2, 16, GroupScales::Nibbles));
    shares::<Quantized<3>>("Q3_K", as_32, of(3, 16, GroupScales::Short { zero: 4 }));
    shares::<Quantized<5>>("Q5_0", as_32, of(5, 32, zero(16)));
    shares::<Quantized<6>>("Q6_K", as_32, of(6, 16, GroupScales::Signed));
    shares::<Quantized<8>>("Q8_0", as_32, of(8, 32, zero(128)));
    let non_linear = zero(NON_LINEAR_ZERO);
    shares::<Quantized<NON_LINEAR>>("IQ4_NL", as_32, of(4, 32, non_linear));
    shares::<Quantized<E2M1>>("MXFP4", as_32, of(4, 32, GroupScales::Microscaled));
    shares::<Quantized<8>>("GPTQ of 8 bits", as_128, of(8, 128, zero(128)));
    let int4 = ScaleLayout::int4;
    shares::<Quantized<4>>("int4 by 32", WeightFormat::Int4By32, int4(32));
    shares::<Quantized<4>>("int4 by 64", WeightFormat::Int4By64, int4(64));
    shares::<Quantized<4>>("int4 by 128", WeightFormat::Int4By128, int4(128));
}
