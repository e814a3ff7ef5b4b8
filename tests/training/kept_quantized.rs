//! Adapters on weights that stay quantized: PEFT's losses, and the dequantized model's bits.

use std::{
    collections::BTreeMap,
    fs,
    ops::Deref,
    path::{Path, PathBuf},
};

use candle_blocks::{
    Checkpoint, DropoutSource, ForwardContext, Loader, Parameters, Precision, Stack, Weights,
    candle_core::{DType, Device, Tensor, Var},
    checkpoint::files::TensorFiles,
    model::ModelInput,
    train::{
        AdamW, AdamWConfig, Decay, Gradients, Lora, LoraConfig, ParameterGroup, Schedule,
        backward_recomputing, loss_value,
    },
};

use crate::{
    device::device,
    message::message,
    numbers::{bits, numbers},
    reference::{Reference, assert_passed},
    rehearsal::rehearsed,
    same::assert_same,
    weights::{is_present, weights},
};

const TARGETS: [&str; 5] = [
    "attention.query",
    "attention.value",
    "attention.output",
    "feed_forward.gate",
    "feed_forward.down",
];
const ALL: [&str; 2] = ["*attention.*", "feed_forward.*"];

/// Opens a committed file's checkpoint, dequantized and quantized.
fn opened(path: &Path) -> [Form; 2] {
    let of = |form| Form(Checkpoint::open(path).unwrap(), form);
    [
        of(|dtype, device| Weights::Dense(dtype, device)),
        of(|dtype, device| Weights::AsStored(dtype, device)),
    ]
}

/// A checkpoint, and the form of the weights that it loads.
struct Form(Checkpoint, fn(DType, &Device) -> Weights);

impl Form {
    fn loader(&self, dtype: DType) -> Loader<'_> {
        self.0.load(self.1(dtype, &device()))
    }
}

impl Deref for Form {
    type Target = Checkpoint;

    fn deref(&self) -> &Checkpoint {
        &self.0
    }
}

fn path(name: &str) -> PathBuf {
    match name.starts_with("gguf") {
        true => weights(name).join("model.gguf"),
        false => weights(name),
    }
}

/// Returns every committed quantized checkpoint.
fn committed() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (kind, least) in [("quantized", 17), ("gguf", 12)] {
        if !is_present(kind) {
            continue;
        }
        let folders = fs::read_dir(weights(kind)).unwrap();
        let folders: Vec<_> = folders.map(|e| e.unwrap().file_name()).collect();
        assert!(folders.len() >= least, "only {folders:?}");
        found.extend(
            folders
                .iter()
                .map(|folder| path(&format!("{kind}/{}", folder.display()))),
        );
    }
    found
}

/// Returns `ruled` as in `weights/fixtures/reference/quantized_lora.py`.
pub fn ruled(start: usize, scale: f64, dims: &[usize]) -> Tensor {
    let number = |i| ((i * 31 + start * 17) % 97) as f64 / 97.0 - 0.5;
    let n: usize = dims.iter().product();
    let numbers: Vec<f32> = (0..n).map(|i| (number(i) * scale) as f32).collect();
    Tensor::from_vec(numbers, dims, &device()).unwrap()
}

fn width(checkpoint: &Checkpoint) -> usize {
    checkpoint.config().blocks[0].d_model()
}

#[test]
fn fifty_steps_on_quantized_weights_stay_on_the_loss_curve_of_peft() {
    if !is_present("quantized") {
        return;
    }
    let reference = Reference::open("quantized_lora");
    let mut comparisons = Vec::new();
    for name in ["quantized/bnb-nf4", "quantized/gptq-4", "gguf/llama"] {
        let [_, checkpoint] = opened(&path(name));
        let mut stack = checkpoint.loader(DType::F32).stack().unwrap();
        let config = LoraConfig::new(2, 4.0, &TARGETS);
        let lora = Lora::attach(&mut stack, config, 0).unwrap();
        for (i, target) in TARGETS.iter().enumerate() {
            let role = format!("blocks.0.{target}.lora_a.weight");
            let a = lora.parameters().find(&role).unwrap().clone();
            a.set(&ruled(i, 0.5, a.dims())).unwrap();
        }
        let group = ParameterGroup::new(lora.parameters(), 0.0);
        let config = AdamWConfig {
            learning_rate: 3e-3,
            ..Default::default()
        };
        let mut optimizer = AdamW::new([group], config).unwrap();
        let schedule = Schedule::new(Decay::Cosine, 5, 50);
        let [x, target] = [7, 11].map(|start| ruled(start, 4.0, &[4, 6, width(&checkpoint)]));
        let losses = (0..50).map(|step| {
            let y = stack.forward_with(&x, &ForwardContext::training()).unwrap();
            let loss = (y - &target).unwrap().sqr().unwrap().mean_all().unwrap();
            let mut gradients = optimizer.backward(&loss).unwrap();
            gradients.clip_norm(1.0).unwrap();
            optimizer.update(&gradients, schedule.factor(step)).unwrap();
            loss_value(&loss).unwrap() as f32
        });
        let losses: Vec<f32> = losses.collect();
        assert!(losses[49] < 0.7 * losses[0], "{name}: {losses:?}");
        let losses = Tensor::new(losses, &device()).unwrap();
        comparisons.push(reference.compare(&format!("{name}.losses"), &losses));
    }
    for c in &comparisons {
        let torch = c.tolerance.and_then(|t| t.torch_error);
        println!("{}: {:.1e} off, PEFT in f32 {torch:?}", c.name, c.max_abs);
    }
    assert_passed(&comparisons);
}

/// Returns a stack with nonzero adapters, and the trained parameters: the adapters, and for a loader with variables all
/// weights that are not quantized.
fn adapted(
    checkpoint: &Form,
    dtype: DType,
    targets: &[&str],
    dropout: f64,
) -> (Stack, Lora, Parameters) {
    let loader = checkpoint.loader(dtype).trainable();
    let mut config = checkpoint.config().clone();
    for block in &mut config.blocks {
        if let Ok(attention) = block.attention_mut() {
            attention.dropout = dropout;
        }
    }
    let mut stack = loader.build(|vb| Stack::new(&config, vb)).unwrap();
    let config = LoraConfig::new(2, 4.0, targets).with_dropout(dropout);
    let lora = Lora::attach(&mut stack, config, 3).unwrap();
    for (i, (_, variable)) in lora.parameters().iter().enumerate() {
        let value = ruled(i, 0.25, variable.dims())
            .to_dtype(variable.dtype())
            .unwrap();
        variable.set(&value).unwrap();
    }
    stack.set_dropout_source(&DropoutSource::seeded(5));
    let mut parameters = lora.parameters();
    parameters.extend(loader.parameters());
    (stack, lora, parameters)
}

fn loss_of(y: &Tensor) -> candle_blocks::candle_core::Result<Tensor> {
    y.sqr()?.mean_all()
}

/// The bits of a stack's output, of its input's gradient, and of all trained parameters, by role.
struct Results {
    output: Vec<u64>,
    of_input: Vec<u64>,
    gradients: BTreeMap<String, Option<Vec<u64>>>,
}

fn results(checkpoint: &Form, dtype: DType, targets: &[&str]) -> Results {
    let (stack, _, parameters) = adapted(checkpoint, dtype, targets, 0.0);
    let x = ruled(1, 4.0, &[2, 5, width(checkpoint)]);
    let x = Var::from_tensor(&x.to_dtype(dtype).unwrap()).unwrap();
    let y = stack.forward(&x).unwrap();
    let store = loss_of(&y).unwrap().backward().unwrap();
    let gradients = parameters
        .iter()
        .map(|(role, variable)| (role.clone(), store.get(variable.as_tensor()).map(bits)));
    Results {
        output: bits(&y),
        of_input: bits(store.get(x.as_tensor()).unwrap()),
        gradients: gradients.collect(),
    }
}

#[test]
fn output_and_every_gradient_have_the_bits_of_the_dequantized_model() {
    let mut n_biases = 0;
    for path in committed() {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            // One format tells of other types, of which Metal has no f64.
            let is_one =
                path.ends_with("gptq-4") && !(rehearsed().is_some() && dtype == DType::F64);
            if dtype != DType::F32 && !is_one {
                continue;
            }
            let targets: [&[&str]; 2] = [&ALL, &["attention.output", "*down"]];
            for targets in targets {
                let [dense, kept] = opened(&path).map(|c| results(&c, dtype, targets));
                let case = format!("{path:?} {dtype:?} {targets:?}");
                assert_eq!(dense.output, kept.output, "{case}");
                assert_eq!(dense.of_input, kept.of_input, "{case}");
                for (role, gradient) in &kept.gradients {
                    assert!(gradient == &dense.gradients[role], "{case}: {role}");
                    // Attaching an adapter freezes the whole layer.
                    let (layer, parameter) = role.rsplit_once('.').unwrap();
                    let adapter = format!("{layer}.lora_a.weight");
                    let is_adapted = kept.gradients.contains_key(&adapter);
                    // The correction chooses experts alone.
                    let has_none = is_adapted || role.ends_with(".correction.weight");
                    assert!(gradient.is_some() || has_none, "{case}: {role}");
                    n_biases += usize::from(parameter == "bias" && gradient.is_some());
                }
                // The weights themselves are frozen.
                assert!(kept.gradients.len() < dense.gradients.len(), "{case}");
            }
        }
    }
    assert!(n_biases > 20 || !is_present("gguf"), "{n_biases} biases");
}

#[test]
fn products_in_bf16_have_the_bits_of_the_dequantized_model() {
    if !is_present("quantized") {
        return;
    }
    let [dense, kept] = opened(&path("quantized/bnb-nf4")).map(|checkpoint| {
        let (stack, lora, _) = adapted(&checkpoint, DType::F32, &ALL, 0.0);
        let x = ruled(1, 4.0, &[2, 5, width(&checkpoint)]);
        let context = ForwardContext::training().with_precision(Precision::Bf16);
        let loss = loss_of(&stack.forward_with(&x, &context.unwrap()).unwrap()).unwrap();
        let gradients = Gradients::of(&lora.parameters(), &loss.backward().unwrap());
        gradient_bits(&gradients)
    });
    assert_eq!(dense, kept);
}

fn gradient_bits(gradients: &Gradients) -> Vec<(String, Vec<u64>)> {
    let roles: Vec<String> = gradients.roles().map(String::from).collect();
    let of = |role: String| {
        let gradient = bits(&gradients.get(&role).unwrap().unwrap());
        (role, gradient)
    };
    roles.into_iter().map(of).collect()
}

/// With dropout, accumulated gradients and recomputed activations; then the adapters' files are compared.
#[test]
fn a_training_ends_in_the_same_files_as_on_the_dequantized_model() {
    if !is_present("gguf") {
        return;
    }
    // Six blocks, sliding and full.
    for recomputes in [false, true] {
        let [dense, kept] = opened(&path("gguf/gemma3")).map(|checkpoint| {
            let (stack, lora, _) = adapted(&checkpoint, DType::F32, &ALL, 0.2);
            let group = ParameterGroup::new(lora.parameters(), 0.01);
            let mut optimizer = AdamW::new([group], AdamWConfig::default()).unwrap();
            let context = ForwardContext::training();
            for step in 0..3 {
                let of_batch = |batch: usize| {
                    let x = ruled(2 * step + batch, 4.0, &[2, 5, width(&checkpoint)]);
                    match recomputes {
                        true => {
                            let parameters = lora.parameters();
                            backward_recomputing(&stack, &x, &context, &parameters, loss_of)
                                .unwrap()
                                .gradients
                        }
                        false => {
                            let y = stack.forward_with(&x, &context).unwrap();
                            optimizer.backward(&loss_of(&y).unwrap()).unwrap()
                        }
                    }
                };
                let mut gradients = of_batch(0);
                gradients.accumulate(of_batch(1)).unwrap();
                gradients.scale(0.5);
                optimizer.update(&gradients, 1.0).unwrap();
            }
            let folder = tempfile::tempdir().unwrap();
            lora.save(folder.path().join("adapters.safetensors"))
                .unwrap();
            lora.save_peft_on(&checkpoint, folder.path().join("peft"), "org/base")
                .unwrap();
            let files = ["adapters.safetensors", "peft/adapter_model.safetensors"];
            files.map(|file| fs::read(folder.path().join(file)).unwrap())
        });
        assert!(dense == kept, "recomputed: {recomputes}");
    }
}

#[test]
fn whole_and_packed_models_have_the_bits_of_the_dequantized_model() {
    for path in committed() {
        let folder = if path.is_dir() {
            &path
        } else {
            path.parent().unwrap()
        };
        let expected = TensorFiles::open(folder.join("expected.safetensors")).unwrap();
        let input = ModelInput::tokens(&expected.read("input_ids").unwrap());
        let [dense, kept] = opened(&path).map(|checkpoint| {
            let models = [
                checkpoint.loader(DType::F32).model().unwrap(),
                checkpoint
                    .load(Weights::Packed(Precision::F32))
                    .model()
                    .unwrap(),
            ];
            models.map(|model| {
                let output = model.forward(&input).unwrap();
                output.logits.unwrap_or(output.last_hidden_state)
            })
        });
        for i in 0..2 {
            assert_same(&kept[i], &dense[i], (&path, i));
        }
    }
}

#[test]
fn merging_into_quantized_weights_is_refused_and_the_cure_works() {
    if !is_present("quantized") {
        return;
    }
    let [dense, kept] = opened(&path("quantized/gptq-4"));
    let (mut stack, lora, _) = adapted(&kept, DType::F32, &ALL, 0.0);
    let x = ruled(1, 4.0, &[2, 5, width(&kept)]);
    let beside = numbers(&stack.forward(&x).unwrap());
    let message = message(lora.merge(&mut stack));
    assert!(message.contains("blocks.0.attention.query"), "{message}");
    assert!(message.contains("with Weights::Dense"), "{message}");
    // Nothing was merged.
    assert_eq!(numbers(&stack.forward(&x).unwrap()), beside);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapters.safetensors");
    lora.save(&path).unwrap();
    let mut other = dense.loader(DType::F32).stack().unwrap();
    let loaded = Lora::load(&mut other, &path).unwrap();
    loaded.merge(&mut other).unwrap();
    for (merged, beside) in numbers(&other.forward(&x).unwrap()).iter().zip(beside) {
        assert!((merged - beside).abs() < 1e-4, "{merged} {beside}");
    }
}

#[test]
fn a_checkpoint_without_quantized_weights_is_refused() {
    let [_, checkpoint] = opened(&weights("tiny-gpt2"));
    let message = message(checkpoint.loader(DType::F32).stack());
    assert!(message.contains("no quantized weights"), "{message}");
}

/// Returns a copy of a committed folder, to damage.
fn copied(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(weights(name).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

#[test]
fn quantized_values_are_in_memory_so_the_file_may_be_removed() {
    if !is_present("quantized") {
        return;
    }
    let folder = copied("quantized/packed-4");
    let [_, checkpoint] = opened(folder.path());
    let stack = checkpoint.loader(DType::F32).stack().unwrap();
    let x = ruled(1, 4.0, &[2, 5, width(&checkpoint)]);
    let before = bits(&stack.forward(&x).unwrap());
    let file = folder.path().join("model.safetensors");
    fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(0)
        .unwrap();
    drop(checkpoint);
    assert_eq!(bits(&stack.forward(&x).unwrap()), before);
}

#[test]
fn faulty_quantized_values_are_reported_when_they_are_loaded() {
    if !is_present("quantized") {
        return;
    }
    let folder = copied("quantized/gptq-4");
    let file = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let scales = "model.layers.0.mlp.up_proj.scales";
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let start = read.tensor(scales).unwrap().data().as_ptr() as usize - bytes.as_ptr() as usize;
    bytes[start..start + 2].copy_from_slice(&half::f16::NAN.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    let [_, checkpoint] = opened(folder.path());
    let message = message(checkpoint.loader(DType::F32).stack());
    assert!(message.contains(scales), "{message}");
}
