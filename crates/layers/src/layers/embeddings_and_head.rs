//! The layers around the blocks of a model.

use candle_core::Result;

use crate::config::{LinearConfig, ModelConfig, ReadoutConfig, TokenSelection};
use crate::layers::{Embeddings, Linear, ParameterSource, Readout};

/// Embeddings, pooler and head of a model.
///
/// Names in a `VarBuilder`: `embeddings`, `pooler`, and the head's task, such as `causal_lm`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmbeddingsAndHead {
    /// The embeddings, which compute the first block's input.
    pub embeddings: Embeddings,
    /// The projection from the blocks' output to the width of the word embeddings, if there is one (OPT).
    pub projection_back: Option<Linear>,
    /// The pooler, if there is one.
    pub pooler: Option<Readout>,
    /// The head, if there is one.
    pub head: Option<Readout>,
}

impl EmbeddingsAndHead {
    /// Creates all layers with parameters from `vb`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &ModelConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let embeddings = Embeddings::new(&config.embeddings, vb.pp("embeddings"))?;
        let projection_back = config.output_projection_width().map(|width| {
            let linear = LinearConfig::new(config.embeddings.d_model(), width).with_bias(false);
            Linear::new(&linear, vb.pp("embeddings.projection_back"))
        });
        let d_model = config.output_width();
        let pooler = config
            .pooler
            .as_ref()
            .map(|pooler| Readout::new(pooler, d_model, &embeddings, vb.pp("pooler")));
        let head = config.head.as_ref().map(|head| {
            let pooled = config.pooler.as_ref().and_then(width);
            let d_in = match head.readout.reads {
                TokenSelection::Pooled => pooled.unwrap_or(d_model),
                _ => d_model,
            };
            let vb = vb.pp(head.task.to_string());
            Readout::new(&head.readout, d_in, &embeddings, vb)
        });
        Ok(Self {
            projection_back: projection_back.transpose()?,
            pooler: pooler.transpose()?,
            head: head.transpose()?,
            embeddings,
        })
    }
}

/// Returns the output width of a pooler, if it differs from the input width.
fn width(readout: &ReadoutConfig) -> Option<usize> {
    let transform = readout
        .transform
        .as_ref()
        .and_then(|transform| transform.linear);
    let output = readout.output.as_ref().map(|output| output.n_out);
    output.or(transform.map(|linear| linear.d_out))
}
