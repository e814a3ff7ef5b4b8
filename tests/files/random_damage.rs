//! Random damage: a file is accepted exactly when the `safetensors` crate accepts it, and read alike.

use candle_blocks::Error;
use candle_blocks::checkpoint::files::TensorFiles;
use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;
use safetensors::SafeTensors;

use crate::bad_directories::INDEX;
use crate::hostile::{Entry, Folder, framed, header, valid};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// Flipped bytes, a cut or an extension, anywhere.
    #[test]
    fn a_damaged_file_is_judged_as_by_the_safetensors_crate(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        length in prop::option::of(0usize..700),
    ) {
        let mut bytes = valid();
        for (index, value) in changes {
            let position = index.index(bytes.len());
            bytes[position] = value;
        }
        if let Some(length) = length {
            bytes.resize(length, 0);
        }
        agrees_with_the_crate(&bytes)?;
    }

    /// Well-formed headers with wrong and right numbers; random bytes rarely get past the JSON.
    #[test]
    fn a_header_of_any_numbers_is_judged_as_by_the_safetensors_crate(
        entries in prop::collection::vec(
            (
                prop::sample::select(vec!["U8", "F16", "F32", "I64", "F4", "BOOL"]),
                prop::collection::vec(
                    prop_oneof![8 => 0usize..4, 1 => Just(usize::MAX), 1 => Just(1 << 33)], 0..4,
                ),
                -2i64..3,
                prop_oneof![9 => Just(None), 1 => (-2i64..3).prop_map(Some)],
            ),
            0..4,
        ),
        extra in prop_oneof![4 => Just(0i64), 1 => -2i64..3],
    ) {
        let mut filled = 0u64;
        let mut tensors = Vec::new();
        for (i, (dtype, shape, shift, damage)) in entries.iter().enumerate() {
            let bits = match *dtype { "F4" => 4, "F16" => 16, "F32" => 32, "I64" => 64, _ => 8 };
            let size = shape.iter().fold(bits, |n: u64, &dim| n.wrapping_mul(dim as u64)) / 8 % 1000;
            let shift = damage.map_or(0, |_| *shift);
            let begin = filled.saturating_add_signed(shift) as usize;
            let end = filled.saturating_add_signed(damage.unwrap_or(0) + size as i64) as usize;
            filled += size;
            tensors.push((format!("t{i}"), *dtype, shape.clone(), [begin, end]));
        }
        let entries: Vec<Entry> =
            tensors.iter().map(|(name, dtype, shape, at)| (&**name, *dtype, &**shape, *at)).collect();
        let data = vec![7; filled.saturating_add_signed(extra) as usize];
        agrees_with_the_crate(&framed(header(&entries).as_bytes(), &data))?;
    }

    #[test]
    fn a_damaged_index_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let folder = Folder::new();
        folder.write("m.safetensors", &valid());
        let mut json = br#"{"weight_map":{"down.weight":"m.safetensors"}}"#.to_vec();
        for (index, value) in changes {
            let position = index.index(json.len());
            json[position] = value;
        }
        match TensorFiles::open(folder.write(INDEX, &json)) {
            Ok(files) => prop_assert_eq!(files.names().collect::<Vec<_>>(), ["down.weight"]),
            Err(error) => prop_assert!(error.to_string().contains(INDEX) || error.to_string().contains("m.safe"), "{}", error),
        }
    }
}

/// Ours accepts a file exactly when the `safetensors` crate does, with the same shapes and bytes;
/// but for the two kinds of file that it refuses in addition.
fn agrees_with_the_crate(bytes: &[u8]) -> std::result::Result<(), TestCaseError> {
    let folder = Folder::new();
    let path = folder.write("m.safetensors", bytes);
    match (TensorFiles::open(&path), SafeTensors::deserialize(bytes)) {
        (Ok(ours), Ok(theirs)) => {
            prop_assert_eq!(ours.names().count(), theirs.len());
            for (name, view) in theirs.iter() {
                let info = ours.info(name).unwrap();
                prop_assert_eq!(&info.shape, view.shape());
                prop_assert_eq!(info.n_bytes, view.data().len());
                match ours.read(name) {
                    Ok(tensor) => {
                        prop_assert_eq!(tensor.dims(), view.shape());
                        prop_assert_eq!(bytes_of(&tensor), view.data());
                    }
                    Err(Error::UnsupportedDType { .. }) => {}
                    Err(error) => prop_assert!(false, "{}", error),
                }
            }
        }
        (Err(error), Ok(_)) => {
            let stricter = ["occurs twice", "overflows"];
            let text = error.to_string();
            prop_assert!(
                stricter.iter().any(|reason| text.contains(reason)),
                "{}",
                text
            );
        }
        (Ok(_), Err(error)) => prop_assert!(false, "accepted, but: {}", error),
        (Err(error), Err(_)) => {
            prop_assert!(matches!(error, Error::NotSafetensors { .. }), "{:?}", error);
            prop_assert!(error.to_string().contains("m.safetensors"), "{}", error);
        }
    }
    Ok(())
}

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    let tensor = tensor.flatten_all().unwrap();
    assert!(matches!(tensor.device(), Device::Cpu));
    match tensor.dtype() {
        DType::U8 => tensor.to_vec1::<u8>().unwrap(),
        DType::F16 => bytemuck::cast_slice(&tensor.to_vec1::<half::f16>().unwrap()).to_vec(),
        DType::BF16 => bytemuck::cast_slice(&tensor.to_vec1::<half::bf16>().unwrap()).to_vec(),
        DType::F32 => bytemuck::cast_slice(&tensor.to_vec1::<f32>().unwrap()).to_vec(),
        DType::F64 => bytemuck::cast_slice(&tensor.to_vec1::<f64>().unwrap()).to_vec(),
        DType::I64 => bytemuck::cast_slice(&tensor.to_vec1::<i64>().unwrap()).to_vec(),
        DType::I32 => bytemuck::cast_slice(&tensor.to_vec1::<i32>().unwrap()).to_vec(),
        DType::U32 => bytemuck::cast_slice(&tensor.to_vec1::<u32>().unwrap()).to_vec(),
        DType::I16 => bytemuck::cast_slice(&tensor.to_vec1::<i16>().unwrap()).to_vec(),
        other => panic!("the reader gives no {other:?}"),
    }
}
