//! Adapters on weights that stay quantized take at most half the memory of adapters on dequantized weights.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use candle_blocks::{
    Checkpoint, ForwardContext, Weights,
    candle_core::{DType, Device, Tensor},
    train::{AdamW, AdamWConfig, Lora, LoraConfig, ParameterGroup},
};
use safetensors::Dtype;
use serde_json::json;

use crate::{
    counted::alone,
    resident::{in_a_process_of_its_own, start_measuring, status},
    synthetic::write_typed,
};

/// 101 MB in f32, 13 MB quantized.
const D_MODEL: usize = 512;
const D_FF: usize = 2048;
const N_BLOCKS: usize = 6;
const GROUP: usize = 128;

#[test]
fn adapters_on_quantized_weights_take_at_most_half_the_memory() {
    in_a_process_of_its_own(
        "quantized_lora::adapters_on_quantized_weights_take_at_most_half_the_memory",
        measure,
    );
}

fn measure() {
    let folder = tempfile::tempdir().unwrap();
    write_gptq(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    // First on quantized weights, so that they cannot reuse memory from the others.
    let [kept, dense] = FORMS.map(|form| peak(&checkpoint, form));
    let share = kept as f64 / dense as f64;
    println!("{kept} bytes over codes, {dense} over f32: {share:.2}");
    assert!(share <= 0.5, "{kept} {dense}");
    // The measurement includes the loaded weights: f32, or quantized.
    let n_weights = N_BLOCKS * (4 * D_MODEL * D_MODEL + 3 * D_MODEL * D_FF);
    assert!(
        dense >= 4 * n_weights && kept >= n_weights / 2,
        "{kept} {dense}"
    );
}

/// The weights stay quantized, or are dequantized.
const FORMS: [Weights; 2] = [
    Weights::AsStored(DType::F32, &Device::Cpu),
    Weights::Dense(DType::F32, &Device::Cpu),
];

/// How much the process grows at most by loading, and by three steps over few tokens.
fn peak(checkpoint: &Checkpoint, form: Weights) -> usize {
    let before = start_measuring();
    let mut stack = checkpoint.load(form).stack().unwrap();
    let config = LoraConfig::new(8, 16.0, &["attention.*", "feed_forward.*"]);
    let lora = Lora::attach(&mut stack, config, 1).unwrap();
    let group = ParameterGroup::new(lora.parameters(), 0.0);
    let mut optimizer = AdamW::new([group], AdamWConfig::default()).unwrap();
    let x: Vec<f32> = (0..16 * D_MODEL).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = Tensor::from_vec(x, (1, 16, D_MODEL), &Device::Cpu).unwrap();
    for _ in 0..3 {
        let y = stack.forward_with(&x, &ForwardContext::training()).unwrap();
        let loss = (y - 1.0).unwrap().sqr().unwrap().mean_all().unwrap();
        let gradients = optimizer.backward(&loss).unwrap();
        assert_eq!(gradients.roles().count(), lora.parameters().len());
        optimizer.update(&gradients, 1.0).unwrap();
    }
    status("VmHWM:") - before
}

#[test]
#[ignore = "a measurement: `cargo test --release --test memory -- --ignored --nocapture`"]
fn time_of_a_step_on_quantized_weights() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    write_gptq(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let trainings = FORMS.map(|form| {
        let mut stack = checkpoint.load(form).stack().unwrap();
        let config = LoraConfig::new(8, 16.0, &["attention.*", "feed_forward.*"]);
        let lora = Lora::attach(&mut stack, config, 1).unwrap();
        let group = ParameterGroup::new(lora.parameters(), 0.0);
        (stack, AdamW::new([group], AdamWConfig::default()).unwrap())
    });
    for seq in [16, 128, 512] {
        let x = Tensor::ones((1, seq, D_MODEL), DType::F32, &Device::Cpu).unwrap();
        let mut best = [Duration::MAX; 2];
        for _ in 0..5 {
            for ((stack, optimizer), best) in trainings.iter().zip(&mut best) {
                let start = Instant::now();
                let y = stack.forward_with(&x, &ForwardContext::training()).unwrap();
                let loss = (y - 1.0).unwrap().sqr().unwrap().mean_all().unwrap();
                drop(optimizer.backward(&loss).unwrap());
                *best = start.elapsed().min(*best);
            }
        }
        println!(
            "{seq} tokens: {:?} over codes, {:?} over f32",
            best[0], best[1]
        );
    }
}

/// Writes a Llama in 4-bit GPTQ.
fn write_gptq(folder: &Path) {
    let mut tensors = Vec::new();
    let mut add =
        |name: String, dtype, shape: &[usize]| tensors.push((name, dtype, shape.to_vec()));
    let head = "model.layers";
    for i in 0..N_BLOCKS {
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(format!("{head}.{i}.{norm}.weight"), Dtype::F32, &[D_MODEL]);
        }
        let attention = ["q_proj", "k_proj", "v_proj", "o_proj"];
        let attention = attention.map(|name| (format!("self_attn.{name}"), D_MODEL, D_MODEL));
        let wide = ["gate_proj", "up_proj"].map(|name| (format!("mlp.{name}"), D_MODEL, D_FF));
        let down = [("mlp.down_proj".to_string(), D_FF, D_MODEL)];
        for (module, d_in, d_out) in attention.into_iter().chain(wide).chain(down) {
            let mut part = |part, dtype, shape: &[usize]| {
                add(format!("{head}.{i}.{module}.{part}"), dtype, shape);
            };
            part("qweight", Dtype::I32, &[d_in / 8, d_out]);
            part("qzeros", Dtype::I32, &[d_in / GROUP, d_out / 8]);
            part("scales", Dtype::F16, &[d_in / GROUP, d_out]);
        }
    }
    tensors.push(("model.norm.weight".to_string(), Dtype::F32, vec![D_MODEL]));
    let config = json!({
        "model_type": "llama", "hidden_size": D_MODEL, "num_attention_heads": 8, "num_key_value_heads": 8,
        "num_hidden_layers": N_BLOCKS, "intermediate_size": D_FF, "vocab_size": 8, "rms_norm_eps": 1e-5,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": false, "sym": false},
    });
    write_typed(folder, &config, &tensors);
}
