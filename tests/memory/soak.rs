//! Many callers of shared layers for a long time: no growth, no stall, and the bits that each call has alone.
//!
//! `CANDLE_BLOCKS_SOAK=100000` sets each caller's number of calls. `CANDLE_BLOCKS_SOAK_CURVE=FILE` writes the resident bytes
//! at each hundredth of the run.

use std::{
    env, fs,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use candle_blocks::{
    AttentionMask, Checkpoint, ForwardContext, Precision, Stack, Weights,
    candle_core::{Device, Tensor, Var},
};

use crate::{
    counted::alone,
    serving::resident,
    small::{self, WIDTH, numbers, stack},
};

const CALLERS: usize = 8;
const CALLS: usize = 400;
/// Batch and length.
const SHAPES: [(usize, usize); 5] = [(1, 1), (1, 7), (2, 5), (3, 16), (1, 65)];
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/weights/tiny-gpt2");

/// A caller's operation.
#[derive(Clone, Copy)]
enum Call {
    Encode,
    EncodePadded,
    DecodeCached,
    Train,
    Load,
}

const CALLS_OF_ANY_KIND: [Call; 5] = [
    Call::Encode,
    Call::EncodePadded,
    Call::DecodeCached,
    Call::Train,
    Call::Load,
];

/// The layers that all callers share.
struct Layers {
    encoder: Stack,
    decoder: Stack,
    trained: Stack,
}

impl Layers {
    fn new() -> Self {
        let (encoder, decoder) = (stack(&small::encoder()), stack(&small::decoder()));
        Self {
            encoder: encoder.pack(Precision::F32).unwrap(),
            decoder: decoder.pack(Precision::Int8).unwrap(),
            trained: decoder,
        }
    }

    /// Returns the bits of a call's result.
    fn bits(&self, call: Call, (batch, seq): (usize, usize)) -> Vec<u32> {
        let evaluation = ForwardContext::evaluation();
        let x = numbers(&[batch, seq, WIDTH], 1);
        let y = match call {
            Call::Encode => self.encoder.forward_with(&x, &evaluation),
            Call::EncodePadded => {
                let marks: Vec<u8> = (0..batch * seq)
                    .map(|i| u8::from(i % seq <= i / seq))
                    .collect();
                let marks = Tensor::from_vec(marks, (batch, seq), &Device::Cpu).unwrap();
                let mask = AttentionMask::padding(&marks).unwrap();
                self.encoder.forward_with(&x, &evaluation.with_mask(mask))
            }
            Call::DecodeCached => {
                let mut cache = self.decoder.new_cache();
                let prompt = x.narrow(1, 0, seq.div_ceil(2)).unwrap();
                let prompt = self
                    .decoder
                    .forward_cached(&prompt, &evaluation, &mut cache);
                let rest = (seq.div_ceil(2)..seq).map(|at| {
                    let token = x.narrow(1, at, 1).unwrap();
                    self.decoder.forward_cached(&token, &evaluation, &mut cache)
                });
                let parts: Result<Vec<Tensor>, _> = std::iter::once(prompt).chain(rest).collect();
                parts.and_then(|parts| Tensor::cat(&parts, 1))
            }
            Call::Train => {
                let x = Var::from_tensor(&x).unwrap();
                let y = self.trained.forward_with(&x, &ForwardContext::training());
                let gradients = y.and_then(|y| y.sqr()?.sum_all()?.backward());
                gradients.map(|gradients| gradients.get(&x).unwrap().clone())
            }
            Call::Load => {
                let checkpoint = Checkpoint::open(TINY).unwrap();
                let packed = checkpoint
                    .load(Weights::Packed(Precision::Bf16))
                    .stack()
                    .unwrap();
                let width = checkpoint.config().blocks[0].d_model();
                packed.forward_with(&numbers(&[batch, seq, width], 2), &evaluation)
            }
        };
        let y = y.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        y.into_iter().map(f32::to_bits).collect()
    }
}

#[test]
fn eight_callers_get_the_bits_that_each_has_alone_and_leave_no_memory() {
    let _alone = alone();
    let variable = |name: &str| env::var(name).ok();
    let calls = variable("CANDLE_BLOCKS_SOAK").map_or(CALLS, |n| n.parse().unwrap());
    let layers = Layers::new();
    let kinds = CALLS_OF_ANY_KIND.len() * SHAPES.len();
    let case = |i: usize| (CALLS_OF_ANY_KIND[i % 5], SHAPES[i / 5]);
    let expected: Vec<Vec<u32>> = (0..kinds)
        .map(case)
        .map(|(call, shape)| layers.bits(call, shape))
        .collect();

    let done = AtomicUsize::new(0);
    let mut curve: Vec<usize> = vec![];
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (layers, expected, done) = (&layers, &expected, &done);
            scope.spawn(move || {
                for i in 0..calls {
                    // Each in an order of its own.
                    let which = (i * 7 + i / kinds + caller * 3) % kinds;
                    let (call, shape) = case(which);
                    assert!(
                        layers.bits(call, shape) == expected[which],
                        "case {which}, call {i}"
                    );
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        let mut last = Instant::now();
        while curve.len() < 100 {
            let before = done.load(SeqCst);
            thread::sleep(Duration::from_millis(2));
            if done.load(SeqCst) * 100 >= (curve.len() + 1) * calls * CALLERS {
                curve.push(resident());
            }
            if done.load(SeqCst) > before {
                last = Instant::now();
            }
            assert!(
                last.elapsed() < Duration::from_secs(60),
                "no call ended for a minute"
            );
        }
    });
    if let Some(path) = variable("CANDLE_BLOCKS_SOAK_CURVE") {
        let lines: Vec<String> = curve.iter().map(usize::to_string).collect();
        fs::write(path, lines.join("\n")).unwrap();
    }
    let most = |part: &[usize]| *part.iter().max().unwrap();
    let growth = most(&curve[50..]).saturating_sub(most(&curve[..50]));
    println!(
        "{} calls; {growth} bytes more in the second half",
        calls * CALLERS
    );
    assert!(growth < 4 << 20, "{growth} bytes");
}
