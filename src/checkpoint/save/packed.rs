//! Saving a checkpoint in compressed-tensors' `pack-quantized`.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use super::quantized::{Each, QuantizedTensor, relative_error};
use super::{CONFIG, SaveOptions, SavedTensors, Target, in_parts, write_file};
use crate::checkpoint::quantized::{Packing, config_of_packed_weights};
use crate::checkpoint::source::Source;
use crate::checkpoint::write::Record;
use crate::error::{Error, Result};

/// The layers that are quantised, by the last part of their role.
const LINEAR: [&str; 7] = ["query", "key", "value", "output", "up", "gate", "down"];
const WEIGHT: &str = ".weight";
/// What a weight is stored as.
const PARTS: [&str; 3] = ["_packed", "_scale", "_shape"];

impl SaveOptions {
    pub(super) fn save_packed(
        &self,
        tensors: &SavedTensors,
        packing: Packing,
        path: &Path,
        each: &mut Each,
    ) -> Result<()> {
        let checkpoint = tensors.checkpoint;
        let Some(json) = checkpoint.config_json()? else {
            let path = checkpoint.files.directory().to_path_buf();
            return Err(Error::MissingConfig { path });
        };
        let (mut packed, mut records) = (BTreeMap::new(), vec![]);
        let (mut ignore, mut notes) = (vec!["lm_head".to_string()], HashMap::new());
        for record in tensors.records() {
            let module = record.name.strip_suffix(WEIGHT);
            let is_linear = module.is_some() && tensors.is_linear(&record.name);
            match record.shape[..] {
                [rows, columns] if is_linear && packing.fits(columns) => {
                    records.extend(packing.records(&record, rows, columns));
                    packed.insert(record.name.clone(), record);
                    continue;
                }
                [_, columns] if is_linear => {
                    let size = packing.group_size;
                    let note = format!("its rows of {columns} are not whole groups of {size}");
                    notes.insert(record.name.clone(), note);
                }
                _ => {}
            }
            if let (Some(module), [_, _]) = (module, &record.shape[..]) {
                ignore.push(module.to_string());
            }
            records.push(record);
        }
        if packed.is_empty() {
            let size = packing.group_size;
            let reason = format!(
                "no weight of its blocks is a linear layer's with rows of whole groups of {size}; take smaller groups, or for \
                 weights that are stored as [d_in, d_out] a GGUF file"
            );
            return Err(Error::input(
                checkpoint.files.path().display().to_string(),
                reason,
            ));
        }
        ignore.sort();
        ignore.dedup();
        let target = Target::new(path, self.existing)?;
        let dtypes: HashMap<String, Dtype> = records
            .iter()
            .map(|record| (record.name.clone(), record.dtype))
            .collect();
        let (each, scales) = (RefCell::new(each), RefCell::new(HashMap::new()));
        let metadata = checkpoint.files.metadata();
        let metadata = metadata.iter().map(|(k, v)| (k.clone(), v.clone()));
        self.write_weights(
            target.staging(),
            records,
            metadata.collect(),
            |name, write| {
                let part = PARTS.iter().find_map(|part| {
                    let (weight, record) = packed.get_key_value(name.strip_suffix(part)?)?;
                    Some((*part, weight, record))
                });
                let Some((part, weight, record)) = part else {
                    let mut n_bytes = 0;
                    tensors.write(name, &mut |bytes| {
                        n_bytes += bytes.len();
                        write(bytes)
                    })?;
                    let kind = dtypes.get(name).map(|dtype| format!("{dtype:?}"));
                    let info = checkpoint.files.find(name)?;
                    return each.borrow_mut()(&QuantizedTensor {
                        name: name.to_string(),
                        kind: kind.unwrap_or_default(),
                        n: info.shape.iter().product(),
                        n_bytes,
                        error: 0.0,
                        note: notes.get(name).cloned(),
                    });
                };
                if part == "_shape" {
                    let shape: Vec<i64> = record.shape.iter().map(|&size| size as i64).collect();
                    return write(bytemuck::cast_slice(&shape));
                }
                // Codes and scales are written far from each other. Of scales, which are small, those of all weights may wait.
                let numbers = tensors.numbers(weight, record.dtype)?;
                if let Some(found) = numbers.iter().find(|number| !number.is_finite()) {
                    let reason = format!("it holds {found}, which no code stands for");
                    return Err(Error::input(weight, reason));
                }
                let dtype = scale_type(record.dtype);
                let mut scales = scales.borrow_mut();
                if !scales.contains_key(weight) {
                    let found = in_parts(weight, &numbers, packing.group_size, |part| {
                        packing.scales(part, rounding(dtype))
                    })?;
                    scales.insert(weight.clone(), found.concat());
                }
                let scales: &[f32] = scales.get(weight).map_or(&[], Vec::as_slice);
                if part == "_scale" {
                    return write(&bytes(scales, dtype));
                }
                let (words, decoded) = packing.words(&numbers, scales);
                write(bytemuck::cast_slice(&words))?;
                let (bits, size) = (packing.bits, packing.group_size);
                each.borrow_mut()(&QuantizedTensor {
                    name: weight.clone(),
                    kind: format!("int{bits} in groups of {size}"),
                    n: numbers.len(),
                    n_bytes: 4 * words.len() + bytes(scales, dtype).len(),
                    error: relative_error(&numbers, &decoded),
                    note: None,
                })
            },
        )?;
        let config = config_of_packed_weights(&json, packing, &ignore)?;
        write_file(&target.staging().join(CONFIG), &config)?;
        target.commit()
    }
}

impl Packing {
    /// The tensors that stand for a weight.
    fn records(self, weight: &Record, rows: usize, columns: usize) -> [Record; 3] {
        let record = |part: usize, dtype, shape| Record {
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
    /// Whether a tensor on disk is the weight of a linear layer of the blocks, or of several, as `nn.Linear` has it.
    fn is_linear(&self, name: &str) -> bool {
        let is_linear = |source: &Source| {
            let module = source.role.strip_suffix(WEIGHT);
            let last = module.and_then(|module| module.rsplit('.').next());
            last.is_some_and(|last| LINEAR.contains(&last)) && source.item.is_none()
        };
        let sources = self.checkpoint.plan.of_blocks().iter();
        let mut of_name = sources.filter(|source| source.name == name).peekable();
        of_name.peek().is_some() && of_name.all(is_linear) && !self.lies_transposed(name)
    }
}

/// Scales are of the weights' own type, but not of f64.
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
