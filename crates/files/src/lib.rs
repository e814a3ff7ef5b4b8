//! Reads what others wrote: tensors in safetensors, GGUF, PyTorch and NumPy files, quantized matrices, the `config.json` beside
//! them, and repositories of the Hugging Face Hub. Writes safetensors.
//!
//! Files are not trusted: whatever their bytes are, the result is a value or an error that names the file, the tensor or key, and
//! the cure. Nothing here knows a layer or a model's family.
//!
//! ```
//! use candle_blocks_files::tensors::TensorFiles;
//! use candle_blocks_files::write::write_safetensors;
//! use candle_core::{Device, Tensor};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("model.safetensors");
//! let weight = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
//! write_safetensors(&path, &[("linear.weight".to_string(), weight)], None)?;
//!
//! let files = TensorFiles::open(folder.path())?; // reads headers only
//! assert_eq!(files.info("linear.weight").unwrap().shape, [2, 2]);
//! assert_eq!(files.read_rows("linear.weight", &[1..2])?.to_vec2::<f32>()?, [[3., 4.]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bytes;
pub mod config_json;
#[doc(hidden)]
pub mod gguf;
#[cfg(feature = "hub")]
pub mod hub;
#[doc(hidden)]
pub mod python;
#[doc(hidden)]
pub mod python_json;
#[doc(hidden)]
pub mod quantized;
pub mod tensors;
pub mod write;
