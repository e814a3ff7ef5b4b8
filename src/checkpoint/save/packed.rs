//! Saves a checkpoint in compressed-tensors' `pack-quantized`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use super::integer_packing::IntegerPacking;
use super::quantized::{Each, QuantizedTensor, SquaredError, check_room};
use super::{CONFIG, SaveOptions, SaveTarget, SavedTensors, in_parts, write_file};
use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::write::{Sink, TensorRecord};
use crate::error::{Error, Result};
use candle_blocks_files::quantized::config_of_packed_weights;

/// The layers that are quantized, by the last part of their role.
const LINEAR: [&str; 7] = ["query", "key", "value", "output", "up", "gate", "down"];
const WEIGHT: &str = ".weight";
/// Suffixes of the tensors that store a weight.
const PARTS: [&str; 3] = ["_packed", "_scale", "_shape"];

impl SaveOptions {
    pub(super) fn save_packed(
        &self,
        tensors: &SavedTensors,
        packing: IntegerPacking,
        path: &Path,
        each: &mut Each,
    ) -> Result<()> {
        let files = &tensors.checkpoint.files;
        let Some(json) = tensors.checkpoint.config_json()? else {
            let path = files.directory().to_path_buf();
            return Err(Error::MissingConfig { path });
        };
        let (packed, records) = PackedTensors::new(tensors, packing);
        if packed.weights.is_empty() {
            let size = packing.group_size;
            let reason = format!(
                "no weight in its blocks belongs to a linear layer whose rows are whole groups of \
                 {size}; use smaller groups, or for weights that are stored as [d_in, d_out] a \
                 GGUF file"
            );
            return Err(Error::input(files.path().display().to_string(), reason));
        }
        let target = SaveTarget::new(path, self.existing)?;
        let metadata = files.metadata().iter();
        let metadata = metadata.map(|(k, v)| (k.clone(), v.clone())).collect();
        let each = RefCell::new(each);
        self.write_weights(
            target.staging(),
            records,
            metadata,
            |name, write| match packed.write(name, write)? {
                Some(tensor) => each.borrow_mut()(&tensor),
                None => Ok(()),
            },
        )?;
        let config = config_of_packed_weights(&json, packing.config(&packed.ignored()))?;
        let config = tensors.checkpoint.with_true_ties(config)?;
        write_file(&target.staging().join(CONFIG), &config)?;
        tensors.checkpoint.copy_companions(target.staging())?;
        target.commit()
    }
}

/// A checkpoint's packed weights, and all other tensors.
struct PackedTensors<'t> {
    tensors: &'t SavedTensors<'t>,
    packing: IntegerPacking,
    weights: BTreeMap<String, TensorRecord>,
    /// Tensors that are not packed: their dtype, size, and the reason for one of them.
    others: BTreeMap<String, (Dtype, usize, Option<String>)>,
    /// Quantized values and scales are written at different times. Scales are small, so they are kept until then.
    scales: RefCell<HashMap<String, Vec<f32>>>,
}

impl<'t> PackedTensors<'t> {
    /// Returns the packed weights, and the records of the new files.
    fn new(tensors: &'t SavedTensors<'t>, packing: IntegerPacking) -> (Self, Vec<TensorRecord>) {
        let mut packed = Self {
            tensors,
            packing,
            weights: BTreeMap::new(),
            others: BTreeMap::new(),
            scales: RefCell::default(),
        };
        let mut records = vec![];
        for record in tensors.records() {
            let note = match record.shape[..] {
                [rows, columns] if tensors.is_linear(&record.name) => {
                    if packing.fits(columns) {
                        records.extend(packing.records(&record, rows, columns));
                        packed.weights.insert(record.name.clone(), record);
                        continue;
                    }
                    let size = packing.group_size;
                    Some(format!(
                        "its rows with {columns} elements are not whole groups of {size}"
                    ))
                }
                _ => None,
            };
            let other = (record.dtype, record.shape.len(), note);
            packed.others.insert(record.name.clone(), other);
            records.push(record);
        }
        (packed, records)
    }

    /// Returns modules that may be linear and are not quantized. A head that is tied to the token embeddings has no tensor.
    fn ignored(&self) -> BTreeSet<String> {
        let others = self.others.iter();
        let matrices = others.filter(|(_, (_, n_dims, _))| *n_dims == 2);
        let modules = matrices.filter_map(|(name, _)| name.strip_suffix(WEIGHT));
        modules.chain(["lm_head"]).map(String::from).collect()
    }

    /// Writes one tensor of the new files. Returns its description, once for each weight.
    fn write(&self, name: &str, write: &mut Sink) -> Result<Option<QuantizedTensor>> {
        let part = PARTS.iter().find_map(|part| {
            let (weight, record) = self.weights.get_key_value(name.strip_suffix(part)?)?;
            Some((*part, weight, record))
        });
        let Some((part, weight, record)) = part else {
            return self.copy(name, write).map(Some);
        };
        if part == "_shape" {
            let shape: Vec<i64> = record.shape.iter().map(|&size| size as i64).collect();
            write(bytemuck::cast_slice(&shape))?;
            return Ok(None);
        }
        let numbers = self.tensors.numbers(weight, record.dtype)?;
        if let Some(found) = numbers.iter().find(|number| !number.is_finite()) {
            let reason = format!("it contains {found}, which quantized values cannot represent");
            return Err(Error::input(weight, reason));
        }
        let (packing, dtype) = (self.packing, scale_type(record.dtype));
        let mut scales = self.scales.borrow_mut();
        if !scales.contains_key(weight) {
            let found = in_parts(weight, &numbers, packing.group_size, |part| {
                packing.scales(part, rounding(dtype))
            })?;
            scales.insert(weight.clone(), found.concat());
        }
        let scales: &[f32] = scales.get(weight).map_or(&[], Vec::as_slice);
        let scale_bytes = bytes(scales, dtype);
        if part == "_scale" {
            write(&scale_bytes)?;
            return Ok(None);
        }
        check_room(weight, numbers.len() + numbers.len() * packing.bits / 32)?;
        let (words, decoded) = packing.words(&numbers, scales);
        write(bytemuck::cast_slice(&words))?;
        let mut squares = SquaredError::default();
        squares.add(&numbers, &decoded);
        let (bits, size) = (packing.bits, packing.group_size);
        Ok(Some(QuantizedTensor {
            name: weight.clone(),
            kind: format!("int{bits} in groups of {size}"),
            n: numbers.len(),
            n_bytes: 4 * words.len() + scale_bytes.len(),
            error: squares.relative_error(),
            note: None,
        }))
    }

    fn copy(&self, name: &str, write: &mut Sink) -> Result<QuantizedTensor> {
        let mut n_bytes = 0;
        self.tensors.write(name, &mut |bytes| {
            n_bytes += bytes.len();
            write(bytes)
        })?;
        let info = self.tensors.checkpoint.files.find(name)?;
        let (dtype, _, note) = match self.others.get(name) {
            Some(other) => other.clone(),
            None => (info.dtype, 0, None),
        };
        Ok(QuantizedTensor {
            name: name.to_string(),
            kind: format!("{dtype:?}"),
            n: info.shape.iter().product(),
            n_bytes,
            error: 0.0,
            note,
        })
    }
}

impl IntegerPacking {
    /// Returns the tensors that store a weight.
    fn records(self, weight: &TensorRecord, rows: usize, columns: usize) -> [TensorRecord; 3] {
        let record = |part: usize, dtype, shape| TensorRecord {
            name: format!("{}{}", weight.name, PARTS[part]),
            dtype,
            shape,
        };
        [
            record(0, Dtype::I32, vec![rows, columns * self.bits / 32]),
            record(
                1,
                scale_type(weight.dtype),
                vec![rows, columns / self.group_size],
            ),
            record(2, Dtype::I64, vec![2]),
        ]
    }
}

impl SavedTensors<'_> {
    /// Returns whether a tensor on disk contains one or more linear layers' weights in the blocks, oriented as in
    /// `nn.Linear`.
    fn is_linear(&self, name: &str) -> bool {
        let is_linear = |source: &StoredParameter| {
            let module = source.role.strip_suffix(WEIGHT);
            let last = module.and_then(|module| module.rsplit('.').next());
            last.is_some_and(|last| LINEAR.contains(&last)) && source.item.is_none()
        };
        let sources = self.checkpoint.plan.in_blocks().iter();
        let mut same_name = sources.filter(|source| source.name == name).peekable();
        same_name.peek().is_some() && same_name.all(is_linear) && !self.is_transposed(name)
    }
}

/// Returns the scales' dtype: the weights' own, but not f64.
fn scale_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::BF16 | Dtype::F16 => dtype,
        _ => Dtype::F32,
    }
}

fn rounding(dtype: Dtype) -> fn(f32) -> f32 {
    match dtype {
        Dtype::BF16 => |number| bf16::from_f32(number).to_f32(),
        Dtype::F16 => |number| f16::from_f32(number).to_f32(),
        _ => |number| number,
    }
}

fn bytes(scales: &[f32], dtype: Dtype) -> Vec<u8> {
    let scales = scales.iter();
    match dtype {
        Dtype::BF16 => scales
            .flat_map(|&s| bf16::from_f32(s).to_le_bytes())
            .collect(),
        Dtype::F16 => scales
            .flat_map(|&s| f16::from_f32(s).to_le_bytes())
            .collect(),
        _ => scales.flat_map(|s| s.to_le_bytes()).collect(),
    }
}
