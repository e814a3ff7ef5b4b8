//! A GPT-2 over bytes: this crate's blocks with the embeddings and the head that complete a model.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use candle_blocks::{
    Architecture, Checkpoint, ForwardContext, KvCache, Linear, Parameters, SaveOptions, Stack,
    candle_core::{DType, Device, Module, Tensor, Var},
    candle_nn::Embedding,
    checkpoint::ExistingFiles,
    ops::cross_entropy,
    train::Fresh,
};
use serde_json::{Value, json};

use crate::text::Batch;

/// Every byte is a token, so that any text can be read without a vocabulary.
const N_TOKENS: usize = 256;
const TOKEN: &str = "token_embedding.weight";
const POSITION: &str = "position_embedding.weight";
/// The roles of the parameters outside the blocks, and their names on disk.
const EMBEDDINGS: [(&str, &str); 2] = [
    (TOKEN, "transformer.wte.weight"),
    (POSITION, "transformer.wpe.weight"),
];

/// The size of a new model.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub d_model: usize,
    pub n_blocks: usize,
    pub n_heads: usize,
    /// The context length in bytes.
    pub context: usize,
}

impl Size {
    /// `config.json` as transformers writes it for a GPT-2 of this size without dropout.
    fn config(self) -> Value {
        json!({
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": N_TOKENS,
            "n_positions": self.context,
            "n_embd": self.d_model,
            "n_layer": self.n_blocks,
            "n_head": self.n_heads,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "initializer_range": 0.02,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "tie_word_embeddings": true,
            "bos_token_id": 10,
            "eos_token_id": 10,
            "dtype": "float32",
        })
    }
}

/// The model with its variables.
pub struct Gpt {
    architecture: Architecture,
    token: Embedding,
    position: Embedding,
    stack: Stack,
    /// The token embedding again, since GPT-2 ties the two.
    head: Linear,
    parameters: Parameters,
}

impl Gpt {
    /// Makes a model with parameters initialized from a seed, as in transformers' GPT-2.
    pub fn fresh(size: Size, seed: u64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("config.json");
        fs::write(&path, size.config().to_string())?;
        let architecture = Architecture::open(&path)?;
        let initialization = architecture.initialization.clone();
        let fresh = Fresh::new(initialization, seed, DType::F32, &Device::Cpu);
        let vb = fresh.var_builder();
        let token = vb.get((N_TOKENS, size.d_model), TOKEN)?;
        let position = vb.get((size.context, size.d_model), POSITION)?;
        let stack = fresh.stack(&architecture.config)?;
        let parts = (token, position, stack);
        Self::from_parts(architecture, parts, fresh.parameters())
    }

    /// Loads a directory that [`Self::save`] wrote.
    pub fn open(directory: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::open(directory)?;
        let loader = checkpoint.trainable(DType::F32, &Device::Cpu)?;
        let stack = loader.stack()?;
        let variable = |name: &str| -> Result<Var> {
            let tensor = checkpoint.files().read(name)?.to_dtype(DType::F32)?;
            Ok(Var::from_tensor(&tensor)?)
        };
        let [token, position] = EMBEDDINGS.map(|(_, name)| variable(name));
        let (token, position) = (token?, position?);
        ensure!(
            token.dims()[0] == N_TOKENS,
            "{}: {} tokens, expected the {N_TOKENS} bytes",
            directory.display(),
            token.dims()[0]
        );
        let parts = (
            token.as_tensor().clone(),
            position.as_tensor().clone(),
            stack,
        );
        let mut parameters = vec![(TOKEN.to_string(), token), (POSITION.to_string(), position)];
        parameters.extend(loader.parameters());
        Self::from_parts(Architecture::open(directory)?, parts, parameters.into())
    }

    fn from_parts(
        architecture: Architecture,
        (token, position, stack): (Tensor, Tensor, Stack),
        parameters: Parameters,
    ) -> Result<Self> {
        let width = token.dims()[1];
        Ok(Self {
            architecture,
            head: Linear::from_parts(token.clone(), None)?,
            token: Embedding::new(token, width),
            position: Embedding::new(position, width),
            stack,
            parameters,
        })
    }

    /// The trained parameters by role.
    pub fn parameters(&self) -> Parameters {
        self.parameters.clone()
    }

    /// The context length in bytes.
    pub fn context(&self) -> usize {
        self.position.embeddings().dims()[0]
    }

    /// Returns the number of parameters.
    pub fn n_parameters(&self) -> usize {
        let sizes = self.parameters.iter().map(|(_, p)| p.elem_count());
        sizes.sum()
    }

    /// Returns the mean cross entropy of the next bytes, in nats.
    pub fn loss(&self, batch: &Batch, context: &ForwardContext) -> Result<Tensor> {
        let x = self.embed(&batch.inputs, 0)?;
        let hidden = self.stack.forward_with(&x, context)?; // [rows, context, d_model]
        let logits = self.head.forward(&hidden)?; // [rows, context, tokens]
        Ok(cross_entropy(&logits, &batch.targets)?)
    }

    /// An empty cache for [`Self::next`].
    pub fn new_cache(&self) -> KvCache {
        self.stack.new_cache()
    }

    /// Returns the logits for the byte after `bytes`, which continue the bytes in the cache.
    pub fn next(&self, bytes: &[u8], cache: &mut KvCache) -> Result<Vec<f32>> {
        let ids: Vec<u32> = bytes.iter().map(|&byte| byte as u32).collect();
        let ids = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let x = self.embed(&ids, cache.seen())?.detach(); // the embeddings may be variables
        let context = ForwardContext::evaluation();
        let hidden = self.stack.forward_cached(&x, &context, cache)?;
        let last = hidden.narrow(1, bytes.len() - 1, 1)?;
        Ok(self.head.forward(&last)?.flatten_all()?.to_vec1()?)
    }

    /// `[rows, seq]` to `[rows, seq, d_model]`; the first column stands at position `from`.
    fn embed(&self, ids: &Tensor, from: usize) -> Result<Tensor> {
        let (until, n_positions) = (from + ids.dim(1)?, self.context());
        ensure!(
            until <= n_positions,
            "positions {from} to {} were requested, but the model has n_positions {n_positions}; \
             reset the cache and read the latest bytes again, or give fewer",
            until - 1
        );
        let positions = Tensor::arange(from as u32, until as u32, &Device::Cpu)?;
        let position = self.position.forward(&positions)?;
        Ok(self.token.forward(ids)?.broadcast_add(&position)?)
    }

    /// Writes `config.json` and `model.safetensors` as transformers' `GPT2LMHeadModel` reads them.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let names = EMBEDDINGS.iter();
        let on_disk = |role: &str| names.clone().find(|(known, _)| *known == role);
        let mut others = Vec::new();
        let mut blocks = Vec::new();
        for (role, variable) in &self.parameters {
            match on_disk(role) {
                Some((_, name)) => others.push((name.to_string(), variable.as_detached_tensor())),
                None => blocks.push((role, variable.as_tensor())),
            }
        }
        let options = SaveOptions::default().existing(ExistingFiles::Replace);
        Ok(options.save_new(&self.architecture, directory, blocks, &others)?)
    }
}
