//! The calls that README and docs write inside a sentence, compiled. `tests/architecture/calls.rs` looks for each of them here and
//! in the other sources.
#![allow(
    dead_code,
    unused_must_use,
    clippy::needless_borrow,
    clippy::needless_borrows_for_generic_args,
    reason = "nothing runs them: they compile"
)]

use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::TensorParallel;
use candle_blocks::checkpoint::scheme::Family;
use candle_blocks::text::{Conversation, MaskFiller, Pooling, TextRanker, TokenClassifier};
use candle_blocks::train::Gradients;
use candle_blocks::{
    Architecture, BlockConfig, Checkpoint, CheckpointOptions, ForwardContext, Fresh, Lora,
    LoraConfig, Message, PlainFile, Precision, Result, Sampler, Stack, StackConfig, TextEmbedder,
    TextGenerator, TextOptions, Weights,
};
use serde_json::Value;

fn adapters() -> CheckpointOptions {
    CheckpointOptions::default().adapter("retrieval.query")
}

fn devices(checkpoint: &Checkpoint) -> Result<()> {
    checkpoint
        .load(Weights::Dense(DType::BF16, &Device::new_cuda(0)?))
        .model()?;
    Ok(())
}

fn embeddings(
    embedder: &TextEmbedder,
    texts: [&str; 1],
    vector: Vec<f32>,
    query: Tensor,
    document: Tensor,
    path: &Path,
    name: &str,
) -> Result<()> {
    embedder.embed_prompted(&texts, embedder.prompt("query")?)?;
    embedder.prompt(name)?;
    TextOptions::default()
        .precision(Precision::Bf16)
        .embedder(path)?;
    embedder.weighted_tokens(&vector);
    let _ = TextOptions::default().pooling([Pooling::Lexical]);
    embedder.token_vectors(&texts)?;
    embedder.max_sim(&query, &document)?;
    Ok(())
}

fn tasks(
    classifier: TokenClassifier,
    filler: MaskFiller,
    ranker: TextRanker,
    text: &str,
    documents: [&str; 1],
    n: usize,
) -> Result<()> {
    classifier.with_stride(n);
    filler.with_targets(&["capital", "heart"])?;
    let query = ranker.query(text)?;
    ranker.scores_of(&query, &documents)?;
    Ok(())
}

fn quantized() -> Result<TextGenerator> {
    TextOptions::default()
        .precision(Precision::AsStored)
        .generator("MODEL.gguf")
}

fn training(checkpoint: &Checkpoint, config: LoraConfig, fresh: &Fresh) -> Result<()> {
    let loader = checkpoint
        .trainable(DType::F32, &Device::Cpu)?
        .freeze(&["blocks.*"])?;
    loader.stack()?;
    let mut model = loader.model()?;
    let lora = Lora::attach(model.stack_mut(), config, 42)?;
    lora.parameters();
    fresh.parameters();
    let _ = Gradients::default();
    let _ = ForwardContext::training().with_precision(Precision::Bf16);
    Architecture::open("DIR")?;
    Ok(())
}

fn generation(
    generator: TextGenerator,
    messages: Vec<Message>,
    sampler: &Sampler,
    tools: &Value,
) -> Result<()> {
    let _ = sampler.sampling().seed;
    generator.chat_with(&Conversation::new(&messages).with_tools(tools))?;
    let _ = generator.with_stop_strings(&["\n\n"]);
    Ok(())
}

fn blocks(path: &Path, block: BlockConfig, n: usize, checkpoint: &Checkpoint) -> Result<()> {
    let file = PlainFile::open(path)?;
    file.save("trained.safetensors", file.parameters())?;
    Family::from_json_file(path)?;
    let loader = checkpoint.load(Weights::Packed(Precision::AsStored));
    loader.block(0)?;
    loader.feed_forward(0)?;
    let vb = loader.var_builder();
    Stack::new(&StackConfig::uniform(block, n, None), vb)?;
    Ok(())
}

fn ranks(parallel: &TensorParallel, gradients: &mut Gradients, directory: &Path) -> Result<()> {
    gradients.norm_among(&parallel)?;
    parallel.save(directory)?;
    Ok(())
}
