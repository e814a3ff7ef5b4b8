//! Random damage: a file is accepted exactly when the `safetensors` crate accepts it, and read alike.

use arbtest::arbitrary::{Result, Unstructured};
use candle_blocks::Error;
use candle_blocks::checkpoint::files::TensorFiles;
use candle_core::{DType, Device, Tensor};
use safetensors::SafeTensors;

use crate::bad_directories::INDEX;
use crate::cases::for_cases;
use crate::hostile::{Entry, Folder, framed, header, valid};

/// As many of every property, in which nothing but small files is read.
const CASES: usize = 2000;

/// Flipped bytes, a cut or an extension, anywhere.
#[test]
fn a_damaged_file_is_judged_as_by_the_safetensors_crate() {
    for_cases(CASES, |draw| {
        let mut bytes = valid();
        for _ in 0..draw.int_in_range(0..=5)? {
            change(&mut bytes, draw)?;
        }
        if draw.arbitrary()? {
            bytes.resize(draw.int_in_range(0..=699)?, 0);
        }
        agrees_with_the_crate(&bytes);
        Ok(())
    });
}

/// Well-formed headers with wrong and right numbers; random bytes rarely get past the JSON.
#[test]
fn a_header_of_any_numbers_is_judged_as_by_the_safetensors_crate() {
    for_cases(CASES, |draw| {
        let mut filled = 0u64;
        let mut tensors = Vec::new();
        for i in 0..draw.int_in_range(0..=3)? {
            let dtype = *draw.choose(&["U8", "F16", "F32", "I64", "F4", "BOOL"])?;
            let shape = (0..draw.int_in_range(0..=3)?).map(|_| dimension(draw));
            let shape: Vec<usize> = shape.collect::<Result<_>>()?;
            let bits = match dtype {
                "F4" => 4,
                "F16" => 16,
                "F32" => 32,
                "I64" => 64,
                _ => 8,
            };
            let size = shape
                .iter()
                .fold(bits, |n: u64, &dim| n.wrapping_mul(dim as u64))
                / 8
                % 1000;
            let (shift, longer) = match draw.ratio(1, 10)? {
                true => (draw.int_in_range(-2..=2)?, draw.int_in_range(-2..=2)?),
                false => (0, 0),
            };
            let begin = filled.saturating_add_signed(shift) as usize;
            let end = filled.saturating_add_signed(longer + size as i64) as usize;
            filled += size;
            tensors.push((format!("t{i}"), dtype, shape, [begin, end]));
        }
        let extra = match draw.ratio(1, 5)? {
            true => draw.int_in_range(-2..=2)?,
            false => 0,
        };
        let entries: Vec<Entry> = tensors
            .iter()
            .map(|(name, dtype, shape, at)| (&**name, *dtype, &**shape, *at))
            .collect();
        let data = vec![7; filled.saturating_add_signed(extra) as usize];
        agrees_with_the_crate(&framed(header(&entries).as_bytes(), &data));
        Ok(())
    });
}

#[test]
fn a_damaged_index_never_panics() {
    for_cases(CASES, |draw| {
        let folder = Folder::new();
        folder.write("m.safetensors", &valid());
        let mut json = br#"{"weight_map":{"down.weight":"m.safetensors"}}"#.to_vec();
        for _ in 0..draw.int_in_range(1..=3)? {
            change(&mut json, draw)?;
        }
        match TensorFiles::open(folder.write(INDEX, &json)) {
            Ok(files) => assert_eq!(files.names().collect::<Vec<_>>(), ["down.weight"]),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(INDEX) || text.contains("m.safe"), "{text}");
            }
        }
        Ok(())
    });
}

/// Any byte, anywhere.
fn change(bytes: &mut [u8], draw: &mut Unstructured) -> Result<()> {
    let place = draw.int_in_range(0..=bytes.len() - 1)?;
    bytes[place] = draw.arbitrary()?;
    Ok(())
}

/// Mostly a small one.
fn dimension(draw: &mut Unstructured) -> Result<usize> {
    Ok(match draw.int_in_range(0..=9)? {
        0 => usize::MAX,
        1 => 1 << 33,
        _ => draw.int_in_range(0..=3)?,
    })
}

/// Ours accepts a file exactly when the `safetensors` crate does, with the same shapes and bytes;
/// but for the two kinds of file that it refuses in addition.
fn agrees_with_the_crate(bytes: &[u8]) {
    let folder = Folder::new();
    let path = folder.write("m.safetensors", bytes);
    match (TensorFiles::open(&path), SafeTensors::deserialize(bytes)) {
        (Ok(ours), Ok(theirs)) => {
            assert_eq!(ours.names().count(), theirs.len());
            for (name, view) in theirs.iter() {
                let info = ours.info(name).unwrap();
                assert_eq!(&info.shape, view.shape());
                assert_eq!(info.n_bytes, view.data().len());
                match ours.read(name) {
                    Ok(tensor) => {
                        assert_eq!(tensor.dims(), view.shape());
                        assert_eq!(bytes_of(&tensor), view.data());
                    }
                    Err(Error::UnsupportedDType { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        (Err(error), Ok(_)) => {
            let stricter = ["occurs twice", "overflows"];
            let text = error.to_string();
            assert!(
                stricter.iter().any(|reason| text.contains(reason)),
                "{}",
                text
            );
        }
        (Ok(_), Err(error)) => panic!("accepted, but: {error}"),
        (Err(error), Err(_)) => {
            assert!(matches!(error, Error::NotSafetensors { .. }), "{:?}", error);
            assert!(error.to_string().contains("m.safetensors"), "{}", error);
        }
    }
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
