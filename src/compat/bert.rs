//! `candle_transformers::models::bert`: the same [`Config`], [`BertModel::load`] and [`BertModel::forward`].
//!
//! ```
//! // use candle_transformers::models::bert::{BertModel, Config};
//! use candle_blocks::compat::bert::{BertModel, Config};
//! # use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
//! # use candle_blocks::candle_nn::VarBuilder;
//! # let (folder, device) = ("weights/tiny-bert", Device::Cpu);
//! let config: Config = serde_json::from_slice(&std::fs::read(format!("{folder}/config.json"))?)?;
//! let tensors = safetensors::load(format!("{folder}/model.safetensors"), &device)?;
//! let model = BertModel::load(VarBuilder::from_tensors(tensors, DType::F32, &device), &config)?;
//! let ids = Tensor::new(&[[2u32, 5, 7]], &model.device)?;
//! let hidden = model.forward(&ids, &ids.zeros_like()?, None)?;
//! assert_eq!(hidden.dims(), [1, 3, config.hidden_size]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The original: <https://github.com/huggingface/candle/blob/0.11.1/candle-transformers/src/models/bert.rs>. There
//! are two differences. In f32 on the CPU the weights are packed, and rows that a mask with rank 2 marks as padding
//! are not computed: those rows in the output are zeros. Variables are not packed, and get their gradients.

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
use serde::Deserialize;

use crate::checkpoint::names_on_disk;
use crate::checkpoint::scheme::{Family, Rule};
use crate::config::{
    Activation, AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig, NormPlacement,
    Precision, StackConfig, TokenEmbeddingsConfig,
};
use crate::layers::{AttentionMask, ForwardContext, Stack, TokenEmbeddings, Tokens};

/// The weights' type in the original's examples.
pub const DTYPE: DType = DType::F32;

/// The feed-forward's activation function. Set it in [`Config::hidden_act`](crate::compat::bert::Config::hidden_act).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HiddenAct {
    /// GELU with erf.
    Gelu,
    /// GELU with tanh.
    GeluApproximate,
    /// ReLU, `max(x, 0)`.
    Relu,
}

/// The position embedding.
/// Set it in [`Config::position_embedding_type`](crate::compat::bert::Config::position_embedding_type).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum PositionEmbeddingType {
    /// A learned table.
    #[default]
    Absolute,
}

/// The keys in BERT's `config.json`. Pass them to [`BertModel::load`](crate::compat::bert::BertModel::load).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)] // they are named as in the file
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub intermediate_size: usize,
    pub hidden_act: HiddenAct,
    pub hidden_dropout_prob: f64,
    pub max_position_embeddings: usize,
    pub type_vocab_size: usize,
    pub initializer_range: f64,
    pub layer_norm_eps: f64,
    pub pad_token_id: usize,
    #[serde(default)]
    pub position_embedding_type: PositionEmbeddingType,
    #[serde(default)]
    pub use_cache: bool,
    pub classifier_dropout: Option<f64>,
    pub model_type: Option<String>,
}

impl Default for Config {
    /// Returns the configuration for BERT-base.
    fn default() -> Self {
        Self {
            vocab_size: 30522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: HiddenAct::Gelu,
            hidden_dropout_prob: 0.1,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
            pad_token_id: 0,
            position_embedding_type: PositionEmbeddingType::Absolute,
            use_cache: true,
            classifier_dropout: None,
            model_type: Some("bert".to_string()),
        }
    }
}

impl Config {
    fn norm(&self) -> NormConfig {
        NormConfig::layer_norm(self.hidden_size, self.layer_norm_eps)
    }

    fn embeddings(&self) -> TokenEmbeddingsConfig {
        TokenEmbeddingsConfig::new(self.vocab_size, self.hidden_size)
            .with_positions(self.max_position_embeddings)
            .with_types(self.type_vocab_size)
            .with_norm(self.norm())
    }

    fn stack(&self) -> Result<StackConfig> {
        let activation = match self.hidden_act {
            HiddenAct::Gelu => Activation::Gelu,
            HiddenAct::GeluApproximate => Activation::GeluTanh,
            HiddenAct::Relu => Activation::Relu,
        };
        let attention = AttentionConfig::new(self.hidden_size, self.num_attention_heads)?;
        let feed_forward = FeedForwardConfig::new(self.hidden_size)
            .with_d_ff(self.intermediate_size)
            .with_activation(activation);
        let block = BlockConfig::new(attention, feed_forward, self.norm(), NormPlacement::Post);
        Ok(StackConfig::uniform(block, self.num_hidden_layers, None))
    }
}

/// A BERT without its pooler.
#[derive(Debug)]
pub struct BertModel {
    embeddings: TokenEmbeddings,
    stack: Stack,
    /// The device of the weights.
    pub device: Device,
}

impl BertModel {
    /// Loads the weights from `vb` by BERT's names, optionally prefixed with `bert.` or the configuration's
    /// `model_type`.
    ///
    /// # Errors
    /// If a weight is missing or has the wrong shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let vb = prefixed(vb, config);
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        let backend = BertNames {
            // Without the names of Jina's code, which has the same model type.
            family: Family::known("bert", None)?.replace_block_rules([Rule::norm(
                "attention_norm",
                &["attention.output.LayerNorm"],
            )]),
            stack: config.stack()?,
            vb,
        };
        let stack = backend.stack.clone();
        let roles = VarBuilder::from_backend(Box::new(backend), dtype, device.clone());
        let embeddings = TokenEmbeddings::new(&config.embeddings(), roles.pp("embeddings"))?;
        let is_trained = embeddings
            .word_embeddings()
            .is_some_and(|table| table.is_variable());
        let is_packed = device.is_cpu() && dtype == DType::F32 && !is_trained;
        Ok(Self {
            embeddings,
            stack: match is_packed {
                true => Stack::packed(&stack, roles, Precision::F32)?,
                false => Stack::new(&stack, roles)?,
            },
            device,
        })
    }

    /// Returns the last hidden states, `[batch, seq, hidden_size]`.
    ///
    /// # Shapes
    /// `input_ids` and `token_type_ids` are `[batch, seq]`. The mask is `[batch, seq]` or `[batch, seq, seq]`, in
    /// any integer or float type, with 1 for visible tokens.
    ///
    /// # Errors
    /// If a shape does not match, or an id or position is out of range.
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let tokens = Tokens {
            types: Some(token_type_ids),
            ..Tokens::new(input_ids)
        };
        let x = self.embeddings.forward_t(&tokens, false)?;
        let mask = match attention_mask {
            None => AttentionMask::none(),
            Some(mask) => attention_mask_of(mask, x.dtype())?,
        };
        let context = ForwardContext::evaluation().with_mask(mask);
        self.stack.forward_with(&x, &context)
    }
}

/// Returns a key mask, or else an additive mask: the original adds `(1 - mask) · f32::MIN` to the scores.
fn attention_mask_of(mask: &Tensor, dtype: DType) -> Result<AttentionMask> {
    let mask = match mask.rank() {
        2 => match AttentionMask::padding(mask) {
            Ok(marks) => return Ok(marks),
            Err(_) => mask.unsqueeze(1)?.unsqueeze(1)?, // numbers between 0 and 1
        },
        3 => mask.unsqueeze(1)?,
        rank => {
            bail!("the attention mask has rank {rank}; expected [batch, seq] or [batch, seq, seq]")
        }
    };
    let mask = mask.to_dtype(dtype)?;
    let least = Tensor::new(f32::MIN, mask.device())?.to_dtype(dtype)?;
    let added = (mask.ones_like()? - mask)?.broadcast_mul(&least)?;
    Ok(AttentionMask::none().with_additive(added))
}

/// Returns the builder with the weights' prefix, or without a prefix if there are no weights, as for a new model.
fn prefixed<'v>(vb: VarBuilder<'v>, config: &Config) -> VarBuilder<'v> {
    let prefixes = ["", "bert"].into_iter().chain(config.model_type.as_deref());
    let below = |prefix| match prefix {
        "" => vb.clone(),
        prefix => vb.pp(prefix),
    };
    let holds = |vb: &VarBuilder| vb.contains_tensor("embeddings.word_embeddings.weight");
    prefixes.map(below).find(holds).unwrap_or(vb.clone())
}

/// Finds a role's tensor in a builder with BERT's names.
struct BertNames<'v> {
    vb: VarBuilder<'v>,
    family: Family,
    stack: StackConfig,
}

impl BertNames<'_> {
    /// Returns the first of the role's BERT names (`LayerNorm.weight`, or `.gamma`) that is in the builder, or else
    /// the first name.
    fn name(&self, role: &str, shape: &Shape) -> Result<String> {
        let names = names_on_disk(&self.family, &self.stack, role, shape.dims())?;
        let held = names.iter().find(|name| self.vb.contains_tensor(name));
        match held.or(names.first()) {
            Some(name) => Ok(name.clone()),
            None => bail!("BERT has no {role}"),
        }
    }
}

impl SimpleBackend for BertNames<'_> {
    fn get(
        &self,
        shape: Shape,
        role: &str,
        init: Init,
        dtype: DType,
        _: &Device,
    ) -> Result<Tensor> {
        let name = self.name(role, &shape)?;
        self.vb.get_with_hints_dtype(shape, &name, init, dtype)
    }

    fn get_unchecked(&self, role: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{role}: requested without a shape")
    }

    fn contains_tensor(&self, role: &str) -> bool {
        let name = self.name(role, &Shape::from(()));
        name.is_ok_and(|name| self.vb.contains_tensor(&name))
    }
}
