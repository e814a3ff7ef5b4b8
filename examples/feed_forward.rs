//! Feed-forwards in five common forms, compared with NumPy's or PyTorch's results.
//!
//! ```text
//! cargo run --release --example feed_forward
//! ```
//!
//! `weights/export.py` wrote the reference values in `weights/reference`.

use std::{collections::HashMap, path::Path};

use anyhow::{Context, Result};
use candle_blocks::{
    Activation, Checkpoint, Dropout, DropoutSource, FeedForward, FeedForwardConfig, Linear, Norm,
    NormConfig, NormPlacement, PlainFile, Sublayer, SublayerNorm,
    candle_core::{DType, Device, Module, ModuleT, Tensor, safetensors},
    candle_nn::{VarBuilder, VarMap},
};

const CPU: Device = Device::Cpu;

fn main() -> Result<()> {
    residual_block_with_dropout()?;
    prenorm_sublayer()?;
    numpy_mlp()?;
    parts()?;
    fresh_feed_forward()
}

/// 1. `x + Dropout(W2·ReLU(W1·x + b1) + b2)`, with the mask of `np.random.seed(42)`.
fn residual_block_with_dropout() -> Result<()> {
    println!("1. residual block with dropout, np.random.seed(42), p = 0.25");
    let numpy = Reference::open("dropout")?;
    let part = |name: &str| numpy.get(&format!("7.{name}"));
    let up = Linear::from_parts(part("W1")?, Some(part("b1")?))?;
    let down = Linear::from_parts(part("W2")?, Some(part("b2")?))?;
    let inner = FeedForward::from_parts(None, up, down, Activation::Relu)?;
    let block = Sublayer::new(inner, SublayerNorm::None)
        .with_dropout(Dropout::new(0.25, DropoutSource::numpy(42))?);
    let y = block.forward_t(&part("x")?, true)?;
    beside("NumPy", &y, &part("seed42.p0.25.out")?)
}

/// 2. `x + linear2(relu(linear1(norm(x))))` on [2, 10, 512], from a file with PyTorch's names.
fn prenorm_sublayer() -> Result<()> {
    println!("2. pre-norm sublayer, d_model 512, d_ff 2048, input [2, 10, 512]");
    // The weights are a formula, exact in f32: see weights/fixtures/reference/prenorm_ffn.py.
    let t = |rows: usize, columns: usize, k: usize| -> Result<Tensor> {
        let value = |i: usize, j: usize| ((131 * i + 71 * j + 7 * i * j + 17 * k) % 257) as f32;
        let values = (0..rows).flat_map(|i| (0..columns).map(move |j| value(i, j) - 128.0));
        Ok(Tensor::from_iter(values, &CPU)?.reshape((rows, columns))?)
    };
    let vector = |n, k| -> Result<Tensor> { Ok((t(n, 1, k)?.flatten_all()? / 512.0)?) };
    let state_dict = HashMap::from([
        ("linear1.weight", (t(2048, 512, 1)? / 2048.0)?),
        ("linear1.bias", vector(2048, 2)?),
        ("linear2.weight", (t(512, 2048, 3)? / 2048.0)?),
        ("linear2.bias", vector(512, 4)?),
        ("norm.weight", (vector(512, 5)? + 1.0)?),
        ("norm.bias", vector(512, 6)?),
    ]);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sublayer.safetensors");
    safetensors::save(&state_dict, &path)?;

    let file = PlainFile::open(&path)?;
    let sublayer = file.sublayer(Activation::Relu, NormPlacement::Pre, 1e-5, DType::F32, &CPU)?;
    let x = (t(20, 512, 7)? / 32.0)?.reshape((2, 10, 512))?;
    let y = sublayer.forward_t(&x, false)?;
    beside(
        "PyTorch",
        &y,
        &Reference::open("prenorm_ffn")?.get("pre.d_ff2048")?,
    )
}

/// 3. `relu(y @ W1 + b1) @ W2 + b2` with NumPy's `[in, out]` weights and `(1, n)` biases.
fn numpy_mlp() -> Result<()> {
    println!("3. NumPy MLP, y [3, 4], W1 [4, 8], W2 [8, 4]");
    let numpy = Reference::open("numpy_mlp")?;
    let names = ["W1", "b1", "W2", "b2"];
    let parts = names.map(|name| Ok((name, numpy.get(&format!("two.f64.{name}"))?)));
    let parts = parts.into_iter().collect::<Result<HashMap<_, _>>>()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("mlp.safetensors");
    safetensors::save(&parts, &path)?;

    let file = PlainFile::open(&path)?;
    println!("   layout read from the shapes: {:?}", file.orientation()?);
    let mlp = file.mlp(Activation::Relu, DType::F64, &CPU)?;
    beside(
        "NumPy",
        &mlp.forward(&numpy.get("two.f64.y")?)?,
        &numpy.get("two.f64.out")?,
    )
}

/// 4. The individual parts.
fn parts() -> Result<()> {
    println!("4. the parts: Linear(3, 5) on a vector, GELU, LayerNorm");
    let torch = Reference::open("torch_parts")?;
    let linear = Linear::from_parts(torch.get("linear.weight")?, Some(torch.get("linear.bias")?))?;
    let y = linear.forward(&torch.get("linear.vector.x")?)?;
    beside("PyTorch", &y, &torch.get("linear.vector.output")?)?;
    let y = Activation::Gelu.forward(&torch.get("gelu.x")?)?;
    beside("PyTorch", &y, &torch.get("gelu.output")?)?;
    let norms = Reference::open("norms")?;
    let (weight, bias) = (norms.get("ordinary.weight")?, norms.get("ordinary.bias")?);
    let config = NormConfig::layer_norm(weight.elem_count(), 1e-5);
    let norm = Norm::from_parts(weight, Some(bias), config)?;
    let y = norm.forward(&norms.get("ordinary.x")?)?;
    beside(
        "PyTorch",
        &y,
        &norms.get("layer_norm.eps1e-5.ordinary.output")?,
    )
}

/// 5. A fresh feed-forward, and its share among BERT's parameters.
fn fresh_feed_forward() -> Result<()> {
    println!("5. FeedForward(d_model 384), fresh, and in a real BERT block");
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, DType::F32, &CPU);
    let layer = FeedForward::new(&FeedForwardConfig::new(384).with_dropout(0.1), vb)?;
    for (name, weight, expected) in [
        (
            "up   (Kaiming normal)     ",
            layer.up().weight()?,
            (2.0f64 / 384.0).sqrt(),
        ),
        (
            "down (Xavier normal x .02)",
            layer.down().weight()?,
            0.02 * (2.0f64 / 1920.0).sqrt(),
        ),
    ] {
        let deviation = weight.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
        println!(
            "   {name} {:?}: deviation {deviation:.6}, expected {expected:.6}",
            weight.dims()
        );
    }
    let pretrained = root().join("weights/minilm-block0");
    if !pretrained.exists() {
        println!("   weights/minilm-block0 is only in a clone of the repository");
        return Ok(());
    }
    let checkpoint = Checkpoint::open(pretrained)?;
    let size = |part: &str| -> usize {
        let report = checkpoint.report();
        let names = report
            .used
            .iter()
            .filter(|t| t.roles[0].contains(part))
            .map(|t| &t.name);
        names
            .filter_map(|name| checkpoint.files().info(name))
            .map(|i| i.shape.iter().product::<usize>())
            .sum()
    };
    let (feed_forward, attention) = (size(".feed_forward."), size(".attention."));
    println!(
        "   all-MiniLM-L6-v2 block 0: feed-forward {feed_forward}, attention {attention} parameters"
    );
    Ok(())
}

/// Prints our first values, the reference's, and the largest difference.
fn beside(who: &str, ours: &Tensor, reference: &Tensor) -> Result<()> {
    let values = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let (ours, theirs) = (values(ours)?, values(reference)?);
    let show = |v: &[f64]| {
        let shown: Vec<String> = v.iter().take(5).map(|x| format!("{x:>10.6}")).collect();
        shown.join(" ")
    };
    let difference = ours
        .iter()
        .zip(&theirs)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max);
    println!("   ours    {}", show(&ours));
    println!(
        "   {who:<7} {}   largest difference {difference:.1e}\n",
        show(&theirs)
    );
    anyhow::ensure!(
        ours.len() == theirs.len(),
        "{} values, expected {}",
        ours.len(),
        theirs.len()
    );
    Ok(())
}

/// Tensors that NumPy or PyTorch computed.
struct Reference(HashMap<String, Tensor>);

impl Reference {
    fn open(name: &str) -> Result<Self> {
        let path = root().join(format!("weights/reference/{name}.safetensors"));
        let tensors = safetensors::load(&path, &CPU);
        Ok(Self(tensors.with_context(|| path.display().to_string())?))
    }

    fn get(&self, name: &str) -> Result<Tensor> {
        self.0
            .get(name)
            .cloned()
            .with_context(|| format!("the reference has no {name}"))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
