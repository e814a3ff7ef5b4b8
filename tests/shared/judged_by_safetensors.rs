//! The `safetensors` crate's verdict on a file.

use candle_blocks::{
    Error,
    candle_core::{DType, Device, Tensor},
    checkpoint::files::TensorFiles,
};
use safetensors::SafeTensors;

use crate::hostile::Folder;

/// Ours accepts a file exactly when the `safetensors` crate does, with the same shapes and bytes;
/// but for the two kinds of file that it refuses in addition.
pub fn agrees_with_the_crate(bytes: &[u8]) {
    // Ours recognizes these formats (GGUF, zip, NumPy) by their first bytes, whatever the file's name is.
    let others: [&[u8]; 3] = [b"GGUF", b"PK\x03\x04", b"\x93NUMPY"];
    if others.iter().any(|magic| bytes.starts_with(magic)) {
        return;
    }
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
