//! Parts that cannot be divided among ranks are refused.

use candle_blocks::{
    AttentionMask, Checkpoint, CheckpointOptions, ForwardContext, Precision, Weights,
    candle_core::{DType, Device, Tensor, Var},
    checkpoint::{TensorParallel, scheme::StackPart},
    train::{Lora, LoraConfig},
};

use crate::{
    committed::present,
    ranks::of_ranks,
    said::assert_says,
    weights::{is_present, weights},
};

/// Returns the errors on `size` ranks for a checkpoint, with a loader of this dtype.
fn refusals(name: &str, dtype: DType, size: usize) -> Vec<String> {
    let checkpoint = Checkpoint::open(weights(name)).unwrap();
    of_ranks(size, |rank| {
        let loader = checkpoint.load(Weights::Dense(dtype, &Device::Cpu));
        let refused = TensorParallel::new(loader, rank);
        refused.unwrap_err().to_string()
    })
}

/// Returns the errors on two ranks from using their parts of tiny-bert.
fn refusals_of_parts(work: impl Fn(TensorParallel) -> String + Sync) -> Vec<String> {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    of_ranks(2, |rank| {
        let loader = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
        work(TensorParallel::new(loader, rank).unwrap())
    })
}

#[test]
fn parts_that_span_all_heads_are_named() {
    if !is_present("families") {
        return;
    }
    for (family, word) in [
        ("deepseek_v3", "a latent"),
        ("deberta", "disentangled"),
        ("bloom", "linear bias"),
        ("olmo2", "norm of whole queries"),
        ("cohere-qk-norm", "norms of each head"),
        ("bitnet", "a norm before the output projection"),
    ] {
        for message in refusals(&format!("families/{family}"), DType::F32, 2) {
            assert_says(message, &["block 0", "2 ranks", word]);
        }
    }
}

#[test]
fn more_ranks_than_heads_are_refused() {
    for message in refusals("tiny-bert", DType::F32, 7) {
        assert_says(message, &["7 ranks", "query heads", "choose at most"]);
    }
}

#[test]
fn other_types_than_f32_are_refused() {
    for message in refusals("tiny-bert", DType::BF16, 2) {
        assert_says(message, &["BF16", "load in that"]);
    }
}

#[test]
fn quantized_weights_are_refused() {
    let names = ["quantized/gptq-4", "quantized/bnb-nf4", "quantized/int8"];
    for name in present(names, |&name| name) {
        for message in refusals(name, DType::F32, 2) {
            assert_says(message, &["quantized", "dequantized first"]);
        }
    }
}

#[test]
fn weights_as_stored_are_refused_on_ranks() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    for message in of_ranks(2, |rank| {
        let loader = checkpoint.load(Weights::Packed(Precision::AsStored));
        let parallel = TensorParallel::new(loader, rank).unwrap();
        parallel.stack().unwrap_err().to_string()
    }) {
        assert_says(message, &["AsStored", "are not quantized"]);
    }
}

#[test]
fn variables_are_not_packed() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    for message in of_ranks(2, |rank| {
        let loader = checkpoint.load(Weights::Packed(Precision::F32)).trainable();
        let parallel = TensorParallel::new(loader, rank).unwrap();
        parallel.stack().unwrap_err().to_string()
    }) {
        assert_says(message, &["no gradient", "Weights::Dense"]);
    }
}

#[test]
fn dropout_is_refused_where_it_would_be_applied() {
    for message in refusals_of_parts(|parallel| {
        let block = &parallel.config().blocks[0];
        assert!(block.residual.attention_dropout > 0.0);
        let x = Tensor::ones((1, 2, block.d_model()), DType::F32, &Device::Cpu).unwrap();
        let stack = parallel.stack().unwrap();
        let refused = stack.forward_with(&x, &ForwardContext::training());
        refused.unwrap_err().to_string()
    }) {
        assert_says(message, &["tensor parallel blocks have no dropout", "0"]);
    }
}

#[test]
fn adapters_are_refused() {
    for message in refusals_of_parts(|parallel| {
        let mut stack = parallel.stack().unwrap();
        let config = LoraConfig::new(2, 4.0, &["attention.query"]);
        let refused = Lora::attach(&mut stack, config, 1);
        refused.unwrap_err().to_string()
    }) {
        assert_says(message, &["tensor parallel", "in one process"]);
    }
}

/// A single rank has the bias: its backward pass would wait for others that have nothing to train.
#[test]
fn a_bias_after_a_sum_is_not_trained_without_its_weight() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    for message in of_ranks(2, |rank| {
        let loader = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
        let loader = loader.freeze(&["*.weight"]).unwrap();
        let refused = TensorParallel::new(loader, rank);
        refused.unwrap_err().to_string()
    }) {
        assert_says(message, &["down.bias", "freeze both or neither"]);
    }
}

#[test]
fn gradients_of_what_blocks_are_given_beside_the_input_are_refused() {
    if !is_present("families") {
        return;
    }
    let options = CheckpointOptions::default().part(StackPart::Decoder);
    let checkpoint = options.open(weights("families/t5")).unwrap();
    for message in of_ranks(2, |rank| {
        let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
        let stack = TensorParallel::new(loader, rank).unwrap().stack().unwrap();
        let block = &checkpoint.config().blocks[0];
        let x = Tensor::ones((1, 2, block.d_model()), DType::F32, &Device::Cpu).unwrap();
        let d_encoder = block.cross_attention.as_ref().unwrap().d_encoder;
        let memory = Var::ones((1, 3, d_encoder), DType::F32, &Device::Cpu).unwrap();
        let memory = memory.as_tensor().clone();
        let context =
            ForwardContext::evaluation().with_encoder_output(memory, AttentionMask::none());
        let refused = stack.forward_with(&x, &context);
        refused.unwrap_err().to_string()
    }) {
        assert_says(
            message,
            &["encoder_hidden_states tracks gradients", "detach()"],
        );
    }
}
