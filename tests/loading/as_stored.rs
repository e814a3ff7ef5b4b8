//! Weights of quantised files that are packed as they are.

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::model::{Model, ModelInput};
use candle_blocks::{Checkpoint, PackedStack, Precision};

use super::quantized::{Judged, judged};
use crate::weights::{is_present, weights};

/// What no scale times a whole number with an offset is, and what the refusal says of it.
const REFUSED: [(&str, &str); 9] = [
    ("mlx-mixed", "groups have 16 columns"),
    ("packed-4", "groups have 16 columns"),
    ("bnb-fp4", "nf4 or fp4"),
    ("bnb-nf4", "nf4 or fp4"),
    ("float8", "FP8"),
    ("float8-blocks", "FP8"),
    ("fp8", "FP8"),
    ("modelopt", "FP8"),
    ("nvfp4", "FP8"),
];

/// The error relative to what is exact, by root mean squares.
fn error(found: &Tensor, exact: &Tensor) -> f64 {
    let [found, exact] =
        [found, exact].map(|x| x.to_dtype(DType::F64).unwrap().flatten_all().unwrap());
    let squares = |x: &Tensor| {
        x.sqr()
            .unwrap()
            .sum_all()
            .unwrap()
            .to_scalar::<f64>()
            .unwrap()
    };
    let difference = (&found - &exact).unwrap();
    (squares(&difference) / squares(&exact)).sqrt()
}

#[test]
fn results_err_by_no_more_than_rounding_the_rows_makes() {
    let mut packed = 0;
    for Judged {
        name,
        checkpoint,
        expected,
    } in judged()
    {
        let format = name.rsplit('/').next().unwrap();
        let refused = REFUSED
            .iter()
            .find(|(of, _)| *of == format && name.contains("quantized"));
        let model = match (checkpoint.packed_model(Precision::AsStored), refused) {
            (Ok(model), None) => model,
            (Err(error), Some((_, reason))) => {
                let message = error.to_string();
                let is_cured = message.contains("pack in Int8, Int4 or Bf16");
                assert!(is_cured && message.contains(reason), "{name}: {message}");
                continue;
            }
            (Err(error), None) => panic!("{name}: {error}"),
            (Ok(_), Some(_)) => panic!("{name} was to be refused"),
        };
        let of = |name: &str| expected.read(name).unwrap();
        let logits = expected.contains("logits");
        let exact = of(if logits {
            "logits.f64"
        } else {
            "last_hidden_state.f64"
        });
        let input = ModelInput::tokens(&of("input_ids"));
        let err = |model: &Model| {
            let output = model.forward(&input).unwrap();
            error(&output.logits.unwrap_or(output.last_hidden_state), &exact)
        };
        let as_stored = err(&model);
        // There weights are rounded as well; rows to as many steps, of one scale where the numbers are of one sign.
        let in_int8 = err(&checkpoint.packed_model(Precision::Int8).unwrap());
        assert!(
            as_stored < 1.3 * in_int8,
            "{name}: {as_stored:.4}, in int8 {in_int8:.4}"
        );
        assert!(as_stored < 0.04, "{name}: {as_stored:.4}");
        packed += 1;
    }
    assert!(packed >= 22 || !is_present("quantized"), "only {packed}");
}

#[test]
fn files_of_numbers_and_layers_in_memory_are_refused_with_the_cure() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let refused = checkpoint.packed_model(Precision::AsStored).unwrap_err();
    let message = refused.to_string();
    let is_cured = message.contains("pack them in Int8, Int4, Bf16, F16 or F32");
    assert!(is_cured && message.contains("tiny-bert"), "{message}");
    let block = checkpoint.block(0, DType::F32, &Device::Cpu).unwrap();
    let message = block.pack(Precision::AsStored).unwrap_err().to_string();
    assert!(message.contains("Checkpoint::packed_stack"), "{message}");
    // Without a checkpoint, the stack finds out for itself.
    let loader = checkpoint.loader(DType::F32, &Device::Cpu).unwrap();
    let stack = PackedStack::new(
        checkpoint.config(),
        loader.var_builder(),
        Precision::AsStored,
    );
    let message = stack.unwrap_err().to_string();
    assert!(message.contains("no weight has any"), "{message}");
}
