//! With enough sequences, threads compute attention for groups of them separately; the bits stay the same.

use candle_blocks::{
    AttentionMask, ForwardContext, Precision,
    candle_core::{Device, Tensor},
};

use crate::{
    cpu_only::cpu_only,
    kinds::{self, MEMORY},
    numbers::bits,
    small::{self, WIDTH, numbers, stack},
};

/// Two sequences make a group, and the last is left for all threads.
const BATCH: usize = 9;
const SEQ: usize = 60;

/// Marks by a rule on sequence and position.
fn marks(rule: impl Fn(usize, usize) -> bool) -> Tensor {
    let marks = (0..BATCH * SEQ).map(|i| u8::from(rule(i / SEQ, i % SEQ)));
    Tensor::from_vec(marks.collect(), (BATCH, SEQ), &Device::Cpu).unwrap()
}

#[test]
fn a_sequence_of_a_large_batch_has_the_bits_that_it_has_alone() {
    cpu_only("packed weights");
    let everything = marks(|_, _| true);
    let unequal = marks(|b, i| i < SEQ - 7 * (b % 5) && i >= b % 3);
    let holes = marks(|b, i| (i + b) % 5 != 1);
    let additive = numbers(&[BATCH, 1, SEQ, SEQ], 3);
    let memory = numbers(&[BATCH, 4, MEMORY], 5);
    let x = numbers(&[BATCH, SEQ, WIDTH], 1);
    for config in [
        small::encoder(),
        small::decoder(),
        kinds::falcon(),
        kinds::cross_decoder(),
        kinds::cross_alibi(),
        kinds::experts(),
    ] {
        for precision in [
            Precision::F32,
            Precision::F16,
            Precision::Bf16,
            Precision::Int8,
            Precision::INT4,
        ] {
            let packed = stack(&config).pack(precision).unwrap();
            for (name, marks, additive) in [
                ("everything", &everything, None),
                ("unequal lengths", &unequal, None),
                ("holes", &holes, None),
                ("additive", &everything, Some(&additive)),
            ] {
                let run = |first: usize, count: usize| {
                    let part = |x: &Tensor| x.narrow(0, first, count).unwrap();
                    let mut mask = AttentionMask::padding(&part(marks)).unwrap();
                    if let Some(additive) = additive {
                        mask = mask.with_additive(part(additive));
                    }
                    let context = ForwardContext::evaluation()
                        .with_encoder_output(part(&memory), AttentionMask::none())
                        .with_mask(mask);
                    packed.forward_with(&part(&x), &context).unwrap()
                };
                let together = run(0, BATCH);
                for b in 0..BATCH {
                    let of_marks = |y: &Tensor| {
                        let kept = marks.get(b).unwrap().to_vec1::<u8>().unwrap();
                        let kept: Vec<u32> =
                            (0..SEQ as u32).filter(|&i| kept[i as usize] != 0).collect();
                        let kept = Tensor::new(kept, &Device::Cpu).unwrap();
                        bits(&y.contiguous().unwrap().index_select(&kept, 1).unwrap())
                    };
                    let of_batch = together.narrow(0, b, 1).unwrap();
                    assert_eq!(
                        of_marks(&run(b, 1)),
                        of_marks(&of_batch),
                        "{precision:?} {name}, sequence {b} of {config:?}"
                    );
                }
            }
        }
    }
}
