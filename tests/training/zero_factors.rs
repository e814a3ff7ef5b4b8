//! A factor of 0 (MPT's `softmax_scale`, Granite's `residual_multiplier`) gives zero gradients, as in PyTorch, instead of
//! none.

use candle_blocks::{
    AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig, NormPlacement, Position,
    TransformerBlock,
    candle_core::{DType, Device, Tensor},
    candle_nn::{VarBuilder, VarMap},
    config::{AlibiConfig, AlibiRounding, AlibiSlopes},
};

use crate::{device::device, numbers::numbers};

/// Returns whether each parameter's gradient is zero, for a block with random input.
fn gradients(config: &BlockConfig) -> Vec<(String, bool)> {
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, DType::F32, &device());
    let block = TransformerBlock::new(config, vb).unwrap();
    let x = Tensor::randn(0f32, 1.0, (2, 5, 12), &Device::Cpu).unwrap();
    let x = x.to_device(&device()).unwrap();
    let loss = block.forward(&x).unwrap().sqr().unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    let data = parameters.data().lock().unwrap();
    assert!(data.len() > 10, "only {}", data.len());
    let is_zero = |(role, variable): (&String, _)| {
        let gradient = gradients.get(variable);
        let gradient = gradient.unwrap_or_else(|| panic!("{role} got no gradient"));
        (role.clone(), numbers(gradient).iter().all(|g| *g == 0.0))
    };
    data.iter()
        .map(|(role, v)| is_zero((role, v.as_tensor())))
        .collect()
}

fn block() -> BlockConfig {
    let attention = AttentionConfig::new(12, 3).unwrap();
    let norm = NormConfig::layer_norm(12, 1e-5);
    let feed_forward = FeedForwardConfig::new(12);
    BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
}

#[test]
fn scores_times_zero_have_gradients_of_zeros() {
    let alibi = Position::Alibi(AlibiConfig::new(
        AlibiSlopes::Interleaved { max: 8.0 },
        1.0,
        AlibiRounding::None,
    ));
    for position in [Position::None, alibi] {
        let mut config = block();
        let attention = config.attention_mut().unwrap();
        *attention = attention.clone().with_scale(0.0).with_position(position);
        for (role, is_zero) in gradients(&config) {
            let is_before_scores =
                role.contains("attention.query.") || role.contains("attention.key.");
            assert_eq!(is_zero, is_before_scores, "{role}");
        }
    }
}

#[test]
fn branches_times_zero_have_gradients_of_zeros() {
    let mut config = block();
    config.residual.multiplier = 0.0;
    for (role, is_zero) in gradients(&config) {
        assert!(is_zero, "{role}");
    }
}
