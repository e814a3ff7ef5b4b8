//! Blocks as one operation, where they consist of steps that [`Joint`] has.

use candle_core::{Result, Tensor};

use crate::{
    config::{Position, ResidualSource, Topology},
    layers::{
        Attention, BlockFeedForward, BranchScale, FeedForward, Linear, Norm, QueryKeyValue,
        Sublayer, SublayerNorm, TransformerBlock, pass::Pass,
    },
    ops::{Joint, Mixing, Value, Visible},
};

/// The output of `blocks` in sequence and the final norm, as one operation. `None` if they contain a step that [`Joint`]
/// lacks: the caller then computes layer by layer.
pub(super) fn joint<'b>(
    blocks: impl Iterator<Item = &'b TransformerBlock>,
    final_norm: Option<&Norm>,
    x: &Tensor,
    pass: &Pass,
) -> Result<Option<Tensor>> {
    let Some((mut joint, mut value)) = Joint::new(x) else {
        return Ok(None);
    };
    for b in blocks {
        let Some(output) = block(&mut joint, b, pass, value)? else {
            return Ok(None);
        };
        value = output;
    }
    match normalised(&mut joint, value, final_norm) {
        Some(_) if !joint.is_empty() => joint.run().map(Some),
        _ => Ok(None),
    }
}

fn block(
    joint: &mut Joint,
    block: &TransformerBlock,
    pass: &Pass,
    x: Value,
) -> Result<Option<Value>> {
    let (attention, feed_forward) = (block.attention(), block.feed_forward());
    let BlockFeedForward::Dense(inner) = feed_forward.inner() else {
        return Ok(None);
    };
    let train = pass.context.train();
    let draws = train && block.dropouts().iter().any(|dropout| dropout.p() > 0.0);
    let sequential = matches!(block.topology(), Topology::Sequential);
    if draws || !sequential || block.cross_attention().is_some() || pass.additive.is_some() {
        return Ok(None);
    }
    let mixed = |joint: &mut Joint, input, residual| {
        self::attention(joint, attention.inner(), pass, input, residual)
    };
    let Some(x) = sublayer(joint, attention, x, mixed)? else {
        return Ok(None);
    };
    let fed =
        |joint: &mut Joint, input, residual| Ok(self::feed_forward(joint, inner, input, residual));
    sublayer(joint, feed_forward, x, fed)
}

fn normalised(joint: &mut Joint, x: Value, norm: Option<&Norm>) -> Option<Value> {
    match norm {
        Some(norm) => joint.norm(x, norm.weight(), norm.bias(), norm.config()),
        None => Some(x),
    }
}

/// A sublayer; `inner` adds the steps of its inner layer, and of the addition to the residual that it is given.
fn sublayer<L>(
    joint: &mut Joint,
    sublayer: &Sublayer<L>,
    x: Value,
    inner: impl FnOnce(&mut Joint, Value, Value) -> Result<Option<Value>>,
) -> Result<Option<Value>> {
    let plain = matches!(sublayer.scale(), BranchScale::One)
        && matches!(sublayer.source(), ResidualSource::Input);
    if !plain {
        return Ok(None);
    }
    let (before, behind) = match sublayer.norm() {
        SublayerNorm::Pre(norm) => (Some(norm), None),
        SublayerNorm::Post(norm) => (None, Some(norm)),
        SublayerNorm::None => (None, None),
        SublayerNorm::Sandwich { .. } | SublayerNorm::Output(_) => return Ok(None),
    };
    let Some(input) = normalised(joint, x, before) else {
        return Ok(None);
    };
    let Some(sum) = inner(joint, input, x)? else {
        return Ok(None);
    };
    Ok(normalised(joint, sum, behind))
}

fn attention(
    joint: &mut Joint,
    attention: &Attention,
    pass: &Pass,
    x: Value,
    residual: Value,
) -> Result<Option<Value>> {
    let config = attention.config();
    let QueryKeyValue::Separate { query, key, value } = attention.projections() else {
        return Ok(None);
    };
    // Nothing between projections and scores, or between scores and softmax.
    let plain = matches!(config.position, Position::None)
        && attention.norms().is_none()
        && config.query_key_norm.is_none()
        && config.clip.is_none()
        && config.soft_cap.is_none();
    let projections = [query, key, value].map(|layer| linear(joint, layer, x, None));
    let ([Some(query), Some(key), Some(value)], true) = (projections, plain) else {
        return Ok(None);
    };
    let visible = Visible {
        keep: pass.keep.as_ref(),
        visibility: config.visibility,
        window: config.window,
        first_query: 0,
    };
    let mixing = Mixing {
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        scale: config.scale,
        visible: &visible,
    };
    let mixed = joint.mix([query, key, value], &mixing)?;
    Ok(mixed.and_then(|mixed| linear(joint, attention.output(), mixed, Some(residual))))
}

fn feed_forward(
    joint: &mut Joint,
    feed_forward: &FeedForward,
    x: Value,
    residual: Value,
) -> Option<Value> {
    if feed_forward.gate().is_some() {
        return None;
    }
    let hidden = linear(joint, feed_forward.up(), x, None)?;
    let hidden = joint.activate(hidden, feed_forward.activation());
    linear(joint, feed_forward.down(), hidden, Some(residual))
}

/// A linear layer without an adapter.
fn linear(joint: &mut Joint, layer: &Linear, x: Value, residual: Option<Value>) -> Option<Value> {
    match layer.adapter() {
        Some(_) => None,
        None => joint.linear(x, layer.weight(), layer.bias(), residual),
    }
}
