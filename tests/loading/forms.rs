//! The forms in which `Checkpoint::load` loads layers, and the earlier names of its calls.

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::model::ModelInput;
use candle_blocks::{Checkpoint, CheckpointOptions, Precision, Weights};

use crate::extra_tensors::with;
use crate::message::message;
use crate::numbers::bits;
use crate::said::assert_says;
use crate::weights::{is_present, weights};

const CPU: Device = Device::Cpu;
const DENSE: Weights = Weights::Dense(DType::F32, &CPU);

fn x(checkpoint: &Checkpoint) -> Tensor {
    let shape = (1, 5, checkpoint.config().blocks[0].d_model());
    let n = shape.1 * shape.2;
    let x: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
    Tensor::from_vec(x, shape, &CPU).unwrap()
}

#[test]
fn a_block_and_a_feed_forward_are_packed_like_those_of_a_packed_stack() {
    let mut of_files = vec![
        ("tiny-bert", Precision::F32),
        ("tiny-gpt2", Precision::Int8),
    ];
    if is_present("quantized") {
        of_files.push(("quantized/gptq-4", Precision::AsStored));
    }
    for (name, precision) in of_files {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let loader = checkpoint.load(Weights::Packed(precision));
        let stack = loader.stack().unwrap();
        let x = x(&checkpoint);
        let last = stack.blocks().len() - 1;
        let block = loader.block(last).unwrap();
        let [found, expected] = [&block, &stack.blocks()[last]].map(|b| b.forward(&x).unwrap());
        assert_eq!(bits(&found), bits(&expected), "{name}");
        let feed_forward = loader.feed_forward(last).unwrap();
        let plain = checkpoint.load(DENSE).feed_forward(last).unwrap();
        let found = bits(&feed_forward.forward(&x).unwrap());
        let packed = match precision {
            Precision::AsStored => continue,
            other => plain.pack(other).unwrap(),
        };
        assert_eq!(found, bits(&packed.forward(&x).unwrap()), "{name}");
    }
}

#[test]
fn the_first_layer_finds_what_is_wrong_with_a_form() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let integers = checkpoint.load(Weights::Dense(DType::U32, &CPU));
    assert_says(message(integers.block(0)), &["U32"]);
    let none = checkpoint.load(Weights::AsStored(DType::F32, &CPU));
    assert_says(
        message(none.stack()),
        &["no quantized weights", "Weights::Dense"],
    );
    let packed = checkpoint.load(Weights::Packed(Precision::F32)).trainable();
    assert_says(message(packed.model()), &["no gradient", "Weights::Dense"]);

    let unknown = with(
        &weights("tiny-bert"),
        &[("encoder.more", &[1], 0.0)],
        |_| (),
    );
    let checkpoint = Checkpoint::open(unknown.path()).unwrap();
    let loader = checkpoint.load(DENSE);
    assert_says(message(loader.block(0)), &["encoder.more"]);
    let own = loader.var_builder().get(1, "blocks.0.attention.query.bias");
    assert_says(own.unwrap_err(), &["encoder.more"]);
    assert_says(
        message(checkpoint.trainable(DType::F32, &CPU)),
        &["encoder.more"],
    );
}

#[test]
#[allow(deprecated, reason = "they are tested here")]
fn the_earlier_names_load_the_same() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let x = x(&checkpoint);
    let of_stack = |stack: candle_blocks::Result<candle_blocks::Stack>| {
        bits(&stack.unwrap().forward(&x).unwrap())
    };
    let packed = Weights::Packed(Precision::Bf16);
    assert_eq!(
        of_stack(checkpoint.stack(DType::F32, &CPU)),
        of_stack(checkpoint.load(DENSE).stack())
    );
    assert_eq!(
        of_stack(checkpoint.packed_stack(Precision::Bf16)),
        of_stack(checkpoint.load(packed).stack())
    );
    let loader = checkpoint.loader(DType::F32, &CPU).unwrap();
    let [old, new, first] = [
        loader.block(1),
        checkpoint.load(DENSE).block(1),
        checkpoint.block(1, DType::F32, &CPU),
    ]
    .map(|block| bits(&block.unwrap().forward(&x).unwrap()));
    assert!(old == new && first == new);
    let [old, new] = [
        checkpoint.feed_forward(0, DType::F32, &CPU),
        checkpoint.load(DENSE).feed_forward(0),
    ]
    .map(|layer| bits(&layer.unwrap().forward(&x).unwrap()));
    assert_eq!(old, new);
    let input = ModelInput::tokens(&Tensor::new(&[[1u32, 5, 9]], &CPU).unwrap());
    let of_model = |model: candle_blocks::Result<candle_blocks::model::Model>| {
        bits(&model.unwrap().forward(&input).unwrap().last_hidden_state)
    };
    assert_eq!(
        of_model(checkpoint.model(DType::F32, &CPU)),
        of_model(checkpoint.load(DENSE).model())
    );
    assert_eq!(
        of_model(checkpoint.packed_model(Precision::Bf16)),
        of_model(checkpoint.load(packed).model())
    );
    if is_present("families") {
        let checkpoint = CheckpointOptions::default()
            .whole()
            .open(weights("families/t5"))
            .unwrap();
        let ids = Tensor::new(&[[1u32, 5, 9]], &CPU).unwrap();
        let input = ModelInput::tokens(&ids).with_decoder(&ids);
        let of_model = |model: candle_blocks::Result<candle_blocks::model::Seq2Seq>| {
            bits(
                &model
                    .unwrap()
                    .forward(&input)
                    .unwrap()
                    .decoder
                    .last_hidden_state,
            )
        };
        assert_eq!(
            of_model(checkpoint.seq2seq(DType::F32, &CPU)),
            of_model(checkpoint.load(DENSE).seq2seq())
        );
        assert_eq!(
            of_model(checkpoint.packed_seq2seq(Precision::Bf16)),
            of_model(checkpoint.load(packed).seq2seq())
        );
    }
    if is_present("quantized") {
        let path = weights("quantized/gptq-4");
        let kept = CheckpointOptions::default()
            .keep_quantized()
            .open(&path)
            .unwrap();
        let now = Checkpoint::open(&path).unwrap();
        let now = now.load(Weights::AsStored(DType::F32, &CPU)).trainable();
        let before = kept.trainable(DType::F32, &CPU).unwrap();
        let [before, now] = [before, now].map(|loader| {
            loader.stack().unwrap();
            loader.parameters().len()
        });
        assert!(before == now && now > 0);
    }
}
