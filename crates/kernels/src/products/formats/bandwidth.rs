//! Measures the bandwidth that products with few rows reach, relative to a plain memory read. Run on an idle
//! machine: `cargo test --release -p candle-blocks-kernels formats::bandwidth -- --ignored --nocapture`

use std::{hint::black_box, time::Instant};

use half::{bf16, f16};

use super::group_scales::{
    E2M1, GroupScales, NON_LINEAR, NON_LINEAR_ZERO, ScaleLayout,
    ScaleType::{self, F16, F32},
};
use super::quantized::Quantized;
use crate::memory::{Aligned, LargePages};
use crate::products::{
    Columns, Epilogue, Halves, PackedMatrix, QuantizedFormat, View, WithKernel,
    tests::multiply_columns,
};
use crate::reference::{on, random};
use crate::threads::{parallel, with_team};
use crate::vectors::{Isa, Level, LevelTask, Vectors};

/// Reads words with `threads` threads. Each reads consecutive parts.
pub fn read_all<W: bytemuck::Pod + Sync>(isa: Isa, words: &[W], threads: usize) {
    let words: &[f32] = bytemuck::cast_slice(words);
    let n_tasks = match threads {
        1 => 1,
        threads => 4 * threads,
    };
    parallel::for_tasks(threads, n_tasks, |task| {
        let start = |task: usize| words.len() * task / n_tasks;
        isa.enter(Read(&words[start(task)..start(task + 1)]));
    });
}

/// Loads every vector, and adds it to eight sums in turn.
struct Read<'a>(&'a [f32]);

impl LevelTask for Read<'_> {
    #[inline(always)]
    fn compute<L: Level>(self, level: L) {
        self.read(level);
    }
}

impl Read<'_> {
    #[inline(always)]
    fn read<V: Vectors<f32>>(self, v: V) {
        let mut sums = [v.splat(0.0); 8];
        for piece in self.0.chunks_exact(8 * V::LANES) {
            for (sum, x) in sums.iter_mut().zip(piece.chunks_exact(V::LANES)) {
                // SAFETY: `x` holds a whole vector.
                *sum = v.add(*sum, unsafe { v.load(x.as_ptr()) });
            }
        }
        black_box(sums);
    }
}

/// Times two functions alternately and returns their medians, because the bandwidth that other machines leave on the
/// same memory changes by the minute.
fn medians(times: usize, mut one: impl FnMut(), mut other: impl FnMut()) -> (f64, f64) {
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    let (mut ones, mut others): (Vec<f64>, Vec<f64>) = (0..times)
        .map(|_| (time(&mut one), time(&mut other)))
        .unzip();
    ones.sort_by(f64::total_cmp);
    others.sort_by(f64::total_cmp);
    (ones[times / 2], others[times / 2])
}

fn shares<F: WithKernel<Element = f32>>(name: &str, layout: F::Layout) {
    let isa = Isa::selected().unwrap();
    for megabytes in [0.5, 8.0, 200.0] {
        let k = 768;
        let column_words = F::column_words(layout, k);
        let panel = F::kernel(isa).panel();
        let n = (megabytes * 1e6 / (4 * column_words * panel) as f64) as usize * panel;
        // The contents do not matter, except that subnormal values would slow the arithmetic down.
        let mut words = Aligned::<F::Word>::zeros_in(&LargePages::default(), n * column_words);
        bytemuck::cast_slice_mut(&mut words).fill(0x3c_u8);
        let packed =
            PackedMatrix::<F>::from_panels(isa, (k, n), (Halves::One, panel), layout, words);
        let times = (1 << 30) / packed.bytes() + 5;
        for (threads, m) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)] {
            let a = random(m * k, 0.0, 1.0, 2);
            let mut y = vec![0.0; m * n];
            // The thread team starts once, as it does for all products in a forward pass.
            let (read, multiplied) = with_team(threads, || {
                let words = packed.words();
                let read = || read_all(isa, words, threads);
                let a = View::row_major(&a, m, k);
                let cpu = on(isa, threads);
                let multiply =
                    || multiply_columns(cpu, Columns::Packed(&packed), a, &Epilogue::NONE, &mut y);
                medians(times, read, multiply)
            });
            let per_second = |seconds: f64| 1e-9 * packed.bytes() as f64 / seconds;
            println!(
                "{name} {megabytes:5.1} MB, {threads} threads, {m} rows: {:6.1} of {:6.1} GB/s ({:3.0} %)",
                per_second(multiplied),
                per_second(read),
                100.0 * read / multiplied
            );
        }
    }
}

/// Returns the layout of weights in `bits` bits, in groups of `group` values.
pub fn of(bits: usize, group: usize, scales: GroupScales) -> ScaleLayout {
    let bits_by_group = (bits, group);
    QuantizedFormat {
        bits_by_group,
        scales,
    }
    .layout()
}

#[test]
#[ignore = "a measurement: needs an idle machine and a minute"]
fn weights_stream_at_the_bandwidth_of_a_plain_read() {
    shares::<f32>("f32", ());
    shares::<f16>("f16", ());
    shares::<bf16>("bf16", ());
    shares::<i8>("int8", ());
    let zero = |scales, zero| GroupScales::Zero { scales, zero };
    let own = |scales: ScaleType| GroupScales::Zeros { scales, least: 1 };
    let both = GroupScales::Minima(F16);
    shares::<Quantized<4>>("Q4_0", of(4, 32, zero(F16, 8)));
    shares::<Quantized<4>>("Q4_1, int4 by 32", of(4, 32, both));
    shares::<Quantized<4>>("Q4_K", of(4, 32, GroupScales::TwoLevels));
    shares::<Quantized<4>>("GPTQ by 32", of(4, 32, own(F16)));
    shares::<Quantized<4>>("int4 by 64", of(4, 64, both));
    shares::<Quantized<4>>("GPTQ by 64", of(4, 64, own(F16)));
    shares::<Quantized<4>>("int4 by 128", of(4, 128, both));
    shares::<Quantized<4>>("GPTQ by 128", of(4, 128, own(F16)));
    shares::<Quantized<4>>("GPTQ, one zero point", of(4, 128, zero(F16, 8)));
    shares::<Quantized<E2M1>>("MXFP4", of(4, 32, GroupScales::Microscaled));
    shares::<Quantized<NON_LINEAR>>("IQ4_NL", of(4, 32, zero(F16, NON_LINEAR_ZERO)));
    let short = |zero| GroupScales::Short { zero };
    shares::<Quantized<NON_LINEAR>>("IQ4_XS", of(4, 32, short(NON_LINEAR_ZERO)));
    shares::<Quantized<3>>("Q3_K", of(3, 16, short(4)));
    shares::<Quantized<2>>("Q2_K", of(2, 16, GroupScales::Nibbles));
    shares::<Quantized<5>>("Q5_0", of(5, 32, zero(F16, 16)));
    shares::<Quantized<5>>("Q5_K", of(5, 32, GroupScales::TwoLevels));
    shares::<Quantized<6>>("Q6_K", of(6, 16, GroupScales::Signed));
    shares::<Quantized<8>>("Q8_0", of(8, 32, zero(F16, 128)));
    shares::<Quantized<8>>("8 bits by 64", of(8, 64, zero(F16, 128)));
    shares::<Quantized<8>>("GPTQ of 8 bits", of(8, 128, zero(F16, 128)));
    shares::<Quantized<8>>("8 bits by row", of(8, 256, zero(F32, 128)));
}
