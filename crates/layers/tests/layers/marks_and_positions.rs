//! Marks of keys and positions are taken in every type that they are documented for, on the device under test.

use candle_blocks::{
    Attention, AttentionConfig, AttentionMask, ForwardContext, Position, RotaryConfig,
    candle_core::{DType, Device, Tensor},
    candle_nn::{VarBuilder, VarMap},
    config::DisentangledConfig,
};

use crate::{cpu_only::cpu_only, device::device, numbers::bits, reference::Reference};

/// Tokenizers and transformers give I64, files and other programs any other.
const INTEGERS: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Returns values with a dtype on the device, contiguous or as a view of columns.
fn on_device(values: &[[u8; 4]; 2], dtype: DType, is_view: bool) -> Tensor {
    let values = Tensor::new(values, &Device::Cpu).unwrap();
    let values = values.to_dtype(dtype).unwrap();
    let values = match is_view {
        true => values.t().unwrap().contiguous().unwrap().t().unwrap(),
        false => values,
    };
    values.to_device(&device()).unwrap()
}

/// An attention that turns queries and keys.
fn attention() -> Attention {
    let config = AttentionConfig::new(8, 2).unwrap();
    let config = config.with_position(Position::Rotary(RotaryConfig::new(4, 100.0)));
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &device());
    Attention::new(&config, vb).unwrap()
}

fn attended(attention: &Attention, context: &ForwardContext) -> Vec<u64> {
    let values = (0..2 * 4 * 8).map(|i| (i * 37 % 101) as f32 / 40.0 - 1.25);
    let x = Tensor::from_iter(values, &device()).unwrap();
    let x = x.reshape((2, 4, 8)).unwrap();
    bits(&attention.forward_with(&x, context).unwrap())
}

/// transformers' `make_log_bucket_position`, for lengths far beyond the table's.
#[test]
fn distances_have_the_rows_of_deberta() {
    cpu_only("rows of a table are counted without a tensor");
    let reference = Reference::open("distances");
    let names = reference.names();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let sizes: Vec<usize> = name.split(' ').map(|n| n.parse().unwrap()).collect();
        let mut config = DisentangledConfig::new(sizes[0]);
        config.max_distance = sizes.get(1).copied();
        let changes = reference.on_cpu(&name).to_vec2::<i64>().unwrap();
        let last = -changes[0][0];
        for distance in -last..=last {
            let from = changes.iter().rfind(|change| change[0] <= distance);
            let expected = from.unwrap()[1] as usize;
            assert_eq!(config.row(distance), expected, "{name}: {distance}");
        }
        let ends = [i64::MIN / 2, i64::MAX / 2].map(|distance| config.row(distance));
        assert!(ends[0] < config.span && (config.span..2 * config.span).contains(&ends[1]));
    }
}

#[test]
fn masks_of_every_type_mask_the_same() {
    const MARKS: [[u8; 4]; 2] = [[1, 1, 0, 1], [0, 1, 1, 1]];
    let attention = attention();
    let masked = |mask: &Tensor| {
        let mask = AttentionMask::padding(mask).unwrap();
        attended(&attention, &ForwardContext::evaluation().with_mask(mask))
    };
    let expected = masked(&on_device(&MARKS, DType::U8, false));
    assert_ne!(
        expected,
        attended(&attention, &ForwardContext::evaluation())
    );
    let values: Vec<u64> = MARKS
        .iter()
        .flatten()
        .map(|&m| f64::from(m).to_bits())
        .collect();
    for dtype in INTEGERS.into_iter().chain(FLOATS) {
        for is_view in [false, true] {
            let marks = on_device(&MARKS, dtype, is_view);
            let mask = AttentionMask::padding(&marks).unwrap();
            let keep = mask.keep().unwrap();
            assert_eq!(keep.dtype(), DType::U8, "{dtype:?}");
            assert_eq!(keep.device().location(), device().location(), "{dtype:?}");
            assert_eq!(bits(keep), values, "{dtype:?}");
            assert_eq!(masked(&marks), expected, "{dtype:?}");
        }
    }
}

#[test]
fn positions_of_every_integer_type_rotate_the_same() {
    const POSITIONS: [[u8; 4]; 2] = [[3, 4, 5, 6], [0, 0, 1, 9]];
    let (attention, plain) = (attention(), ForwardContext::evaluation());
    let turned = |positions: &Tensor| {
        let context = plain.clone().with_position_ids(positions);
        attended(&attention, &context.unwrap())
    };
    let expected = turned(&on_device(&POSITIONS, DType::I64, false));
    assert_ne!(expected, attended(&attention, &plain));
    for dtype in INTEGERS {
        for is_view in [false, true] {
            let positions = on_device(&POSITIONS, dtype, is_view);
            assert_eq!(turned(&positions), expected, "{dtype:?}");
        }
    }
}
