//! Packed layers against PyTorch's fixtures, against the layers they were made from, and against themselves.

mod common;

use candle_blocks::{
    AttentionMask, Checkpoint, ForwardContext, PackedStack, Precision, Visibility,
    candle_core::{DType, Device, Tensor, Var},
    trace,
    verify::verify,
};
use common::{committed, committed::Committed};

/// Every committed stack.
fn stacks() -> Vec<Committed> {
    let stacks = committed::all();
    assert!(!stacks.is_empty());
    stacks
}

fn bits(x: &Tensor) -> Vec<u32> {
    let values = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// Numbers without a pattern that a layer could hide behind.
fn input(batch: usize, seq: usize, width: usize) -> Tensor {
    let values = (0..batch * seq * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0);
    Tensor::from_iter(values, &Device::Cpu)
        .unwrap()
        .reshape((batch, seq, width))
        .unwrap()
}

fn width(stack: &PackedStack) -> usize {
    stack.blocks()[0].d_model()
}

/// An encoder's output for stacks with cross-attention.
fn with_memory(context: ForwardContext, checkpoint: &Checkpoint, batch: usize) -> ForwardContext {
    match &checkpoint.config().blocks[0].cross_attention {
        None => context,
        Some(cross) => context.with_memory(input(batch, 4, cross.d_memory), AttentionMask::none()),
    }
}

#[test]
fn every_committed_checkpoint_packed_in_f32_is_within_the_ratio_rule() {
    let mut failures = Vec::new();
    for stack in stacks() {
        let fixture = stack.fixture();
        let input = committed::input(&fixture);
        let dtype = fixture.hidden_states().dtype();
        match trace::run_packed(&stack.open(), &input, dtype, Precision::F32) {
            Err(error) => failures.push(format!("{}: {error}", stack.label())),
            Ok(stages) => {
                let report = verify(&fixture, &stages.into_iter().collect());
                let forward = |name: &str| !name.starts_with("grads.");
                let mut forward = report.comparisons.iter().filter(|c| forward(&c.name));
                if !forward.all(|c| c.passed()) {
                    failures.push(format!("{}\n{report}", stack.label()));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn to_be_watched_changes_no_bit() {
    for stack in stacks() {
        let checkpoint = stack.open();
        let packed = checkpoint.packed_stack(Precision::F32).unwrap();
        let x = input(2, 7, width(&packed));
        let context = with_memory(ForwardContext::evaluation(), &checkpoint, 2);
        let unwatched = packed.forward_with(&x, &context).unwrap();
        let mut layers = 0;
        let watched = packed.observe(&x, &context, |_, _| {
            layers += 1;
            Ok(())
        });
        assert_eq!(
            bits(&watched.unwrap()),
            bits(&unwatched),
            "{}",
            stack.label()
        );
        assert_eq!(layers, packed.layers().len());
    }
}

#[test]
fn a_sequence_has_the_same_bits_alone_in_a_batch_and_with_padding_behind_it() {
    for stack in stacks() {
        let checkpoint = stack.open();
        let packed = checkpoint.packed_stack(Precision::F32).unwrap();
        let (seq, padding) = (5, 4);
        let x = input(3, seq, width(&packed));
        let together = packed
            .forward_with(
                &x,
                &with_memory(ForwardContext::evaluation(), &checkpoint, 3),
            )
            .unwrap();
        let context = with_memory(ForwardContext::evaluation(), &checkpoint, 1);
        let first = x.narrow(0, 0, 1).unwrap();
        let alone = packed.forward_with(&first, &context).unwrap();
        let of_first = together.narrow(0, 0, 1).unwrap();
        assert_eq!(bits(&alone), bits(&of_first), "{} alone", stack.label());
        let behind = Tensor::full(f32::NAN, (1, padding, width(&packed)), &Device::Cpu).unwrap();
        let padded = Tensor::cat(&[&first, &behind], 1).unwrap();
        let mask: Vec<u8> = (0..seq + padding).map(|i| u8::from(i < seq)).collect();
        let mask = Tensor::from_vec(mask, (1, seq + padding), &Device::Cpu).unwrap();
        let context = context.with_mask(AttentionMask::padding(&mask).unwrap());
        let kept = packed.forward_with(&padded, &context).unwrap();
        let kept = kept.narrow(1, 0, seq).unwrap();
        if checkpoint.config().relative_bias.is_some() || depends_on_length(&checkpoint) {
            continue; // its numbers depend on the length by design
        }
        assert_eq!(bits(&alone), bits(&kept), "{} padded", stack.label());
    }
}

/// Linear biases count from the last key, and some rotations scale with the longest position.
fn depends_on_length(checkpoint: &Checkpoint) -> bool {
    use candle_blocks::{Position, RotaryScaling};
    checkpoint
        .config()
        .blocks
        .iter()
        .any(|block| match &block.attention.position {
            Position::Alibi(_) => true,
            Position::Rotary(rotary) => matches!(
                rotary.scaling,
                RotaryScaling::DynamicNtk { .. } | RotaryScaling::LongRope { .. }
            ),
            _ => false,
        })
}

#[test]
fn a_decoder_fed_in_chunks_gives_the_bits_of_the_full_forward() {
    let mut decoders = 0;
    for stack in stacks() {
        let checkpoint = stack.open();
        let first = &checkpoint.config().blocks[0].attention;
        if first.visibility != Visibility::Causal || depends_on_length(&checkpoint) {
            continue;
        }
        decoders += 1;
        let packed = checkpoint.packed_stack(Precision::F32).unwrap();
        let (batch, seq) = (2, 9);
        let x = input(batch, seq, width(&packed));
        let context = with_memory(ForwardContext::evaluation(), &checkpoint, batch);
        let full = packed.forward_with(&x, &context).unwrap();
        for chunks in [vec![1; 9], vec![9], vec![4, 5], vec![5, 1, 1, 1, 1]] {
            let mut cache = packed.new_cache();
            let mut outputs = Vec::new();
            let mut at = 0;
            for n in &chunks {
                let chunk = x.narrow(1, at, *n).unwrap();
                outputs.push(packed.forward_cached(&chunk, &context, &mut cache).unwrap());
                at += n;
            }
            assert_eq!(cache.seen(), seq);
            let ours = Tensor::cat(&outputs, 1).unwrap();
            assert_eq!(bits(&ours), bits(&full), "{} {chunks:?}", stack.label());
        }
    }
    assert!(decoders > 0);
}

#[test]
fn what_a_packed_layer_cannot_do_is_an_error() {
    let checkpoint = stacks()[0].open();
    let packed = checkpoint.packed_stack(Precision::F32).unwrap();
    let x = input(1, 3, width(&packed));
    let message =
        |result: candle_blocks::candle_core::Result<Tensor>| result.unwrap_err().to_string();
    let tracked = Var::from_tensor(&x).unwrap();
    let refused = message(packed.forward(tracked.as_tensor()));
    assert!(refused.contains("no gradient"), "{refused}");
    let refused = message(packed.forward(&x.to_dtype(DType::F64).unwrap()));
    assert!(refused.contains("F64"), "{refused}");
    let refused = message(packed.forward_with(&x, &ForwardContext::training()));
    assert!(refused.contains("do not train"), "{refused}");
    let refused = message(packed.forward(&input(1, 3, width(&packed) + 1)));
    assert!(refused.contains("expected [.., "), "{refused}");
    let loader = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
    let refused = loader.packed_stack(Precision::F32).unwrap_err().to_string();
    assert!(refused.contains("no gradient"), "{refused}");
    let double = checkpoint.stack(DType::F64, &Device::Cpu).unwrap();
    let refused = double.pack(Precision::F32).unwrap_err().to_string();
    assert!(refused.contains("F64"), "{refused}");
}
