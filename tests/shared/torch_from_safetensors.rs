//! Converts safetensors files to `torch.save` files.

use std::fs;
use std::path::Path;

use candle_blocks::checkpoint::files::TensorFiles;
use safetensors::Dtype;

use crate::torch_file::{View, torch_file};

/// Replaces an f32 safetensors file by a `torch.save` file.
pub fn convert(from: &Path, to: &Path) {
    let files = TensorFiles::open(from).unwrap();
    let shapes = files
        .names()
        .map(|name| files.info(name).unwrap().shape.clone());
    let shapes: Vec<Vec<usize>> = shapes.collect();
    let strides = shapes
        .iter()
        .map(|shape| (0..shape.len()).map(|d| shape[d + 1..].iter().product()));
    let strides: Vec<Vec<usize>> = strides.map(Iterator::collect).collect();
    let (mut data, mut views) = (Vec::<f32>::new(), Vec::new());
    for ((name, shape), strides) in files.names().zip(&shapes).zip(&strides) {
        let values = files.read(name).unwrap().flatten_all().unwrap();
        views.push(View {
            name,
            first: data.len(),
            shape,
            strides,
        });
        data.extend(values.to_vec1::<f32>().unwrap());
    }
    let bytes = torch_file(Dtype::F32, &views, bytemuck::cast_slice(&data));
    fs::write(to, bytes).unwrap();
    fs::remove_file(from).unwrap();
}
