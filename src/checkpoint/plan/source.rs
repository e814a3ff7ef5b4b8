//! One parameter's location on disk, and how to read it.

use std::ops::Range;
use std::path::PathBuf;

use candle_core::Tensor;

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::gguf::with_keys;
use crate::checkpoint::scheme::{Features, ModelPlace, Orientation};
use crate::config::{StackConfig, rank_range};
use crate::error::{Error, Result};
use crate::memory::check_next;
use crate::ops::RankOf;

/// The role of the token embeddings.
pub(crate) const WORD_EMBEDDINGS: &str = "embeddings.word.weight";

/// One parameter's location on disk.
#[derive(Clone, Debug)]
pub(crate) struct StoredParameter {
    /// The role, such as `blocks.0.attention.query.weight`.
    pub role: String,
    /// The tensor on disk.
    pub name: String,
    /// The shape that the layer requests.
    pub shape: Vec<usize>,
    /// The weight's orientation on disk.
    pub orientation: Orientation,
    /// The role's share of the tensor's output features; `None` for all.
    pub features: Option<Features>,
    /// The index along the tensor's first dimension, if parameters are stacked there.
    pub item: Option<Item>,
    /// Leading dimensions with size 1.
    pub leading_ones: usize,
    /// It is trained, because it is not a buffer in PyTorch.
    pub is_trained: bool,
    /// Other tensors in the files that repeat this parameter's values, such as those of a tied head.
    pub copies: Vec<String>,
    /// It is quantized in the file. It is then `[d_out, d_in]`, whatever the rule says.
    pub is_quantized: bool,
}

/// A parameter that is stacked with others in a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub index: usize,
    pub total: usize,
    /// They follow one another along the tensor's own first dimension, instead of an additional one.
    pub is_joined: bool,
}

/// A part of a parameter: a range in its rows (along axis 0) or columns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cut {
    pub axis: usize,
    pub range: Range<usize>,
}

impl StoredParameter {
    /// Returns whether a parameter is a linear layer's weight, or the token embeddings, whose rows a packed weight can return
    /// too. Other tables are read as tensors.
    pub fn is_multiplied(&self) -> bool {
        let role = &self.role;
        self.shape.len() == 2
            && role.ends_with(".weight")
            && (!role.contains("embeddings.") || role.ends_with(WORD_EMBEDDINGS))
    }

    /// Returns the file that contains the tensor.
    pub fn path(&self, files: &TensorFiles) -> PathBuf {
        let info = files.info(&self.name);
        info.map_or_else(|| files.path().to_path_buf(), |info| info.path.clone())
    }

    /// Returns all tensors on disk that contain the parameter, by name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let copies = self.copies.iter().map(String::as_str);
        std::iter::once(self.name.as_str()).chain(copies)
    }

    /// Returns the shape that the tensor on disk must have.
    pub fn disk_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let (Some(features), Some(first)) = (&self.features, shape.first_mut()) {
            *first = features.total;
        }
        if self.is_transposed() {
            shape.reverse();
        }
        match (self.item, shape.first_mut()) {
            (Some(item), Some(first)) if item.is_joined => *first *= item.total,
            (Some(item), _) => shape.insert(0, item.total),
            (None, _) => {}
        }
        shape.splice(0..0, vec![1; self.leading_ones]);
        shape
    }

    /// Returns whether the weight is stored as `[d_in, d_out]`.
    pub fn is_transposed(&self) -> bool {
        self.is_in_out() && !self.is_quantized
    }

    /// Returns whether the weight would be `[d_in, d_out]` if it were not quantized.
    pub fn is_turned_by_quantization(&self) -> bool {
        self.is_in_out() && self.is_quantized
    }

    /// Returns whether the family stores it as `[d_in, d_out]`.
    pub fn is_in_out(&self) -> bool {
        self.orientation == Orientation::InOut && self.shape.len() == 2
    }

    /// Returns whether some of its rows can be read without the others.
    pub fn has_rows(&self) -> bool {
        self.item.is_none() && self.leading_ones == 0 && !self.is_transposed()
    }

    /// Returns where a parameter's rows are in the tensor.
    pub fn rows_on_disk(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        let Some(features) = &self.features else {
            return vec![rows];
        };
        let mut before = 0;
        let part = |range: &Range<usize>| {
            let part = rows.start.max(before)..rows.end.min(before + range.len());
            let start = range.start + part.start - before;
            before += range.len();
            (!part.is_empty()).then(|| start..start + part.len())
        };
        features.ranges.iter().filter_map(part).collect()
    }

    /// Checks that a layer requests the parameter's shape, and that the file's tensor has it.
    pub fn check_request(&self, shape: &[usize], files: &TensorFiles) -> Result<()> {
        if shape == self.shape {
            return self.check_shape(files);
        }
        let error = Error::ShapeMismatch {
            path: self.path(files),
            tensor: self.name.clone(),
            expected: shape.to_vec(),
            found: self.shape.clone(),
        };
        Err(with_keys(files, &self.name, error))
    }

    /// Reads the parameter to the CPU, in the file's dtype and the layer's layout.
    ///
    /// # Errors
    /// If the shape on disk is not [`Self::disk_shape`], or the tensor cannot be read.
    pub fn read(&self, files: &TensorFiles) -> Result<Tensor> {
        self.check_shape(files)?;
        let whole = match (self.item, &self.features) {
            (Some(item), _) => {
                let height = match item.is_joined {
                    true => self.disk_shape()[0] / item.total,
                    false => 1,
                };
                let rows = item.index * height..(item.index + 1) * height;
                let rows = files.read_rows(&self.name, std::slice::from_ref(&rows))?;
                match item.is_joined {
                    true => rows,
                    false => rows.squeeze(0)?,
                }
            }
            // Only this role's rows: no temporary copy of the others.
            (None, Some(features)) if !self.is_transposed() => {
                return files.read_rows(&self.name, &features.ranges);
            }
            (None, _) if self.leading_ones > 0 => {
                files.read(&self.name)?.reshape(self.shape.as_slice())?
            }
            (None, _) => files.read(&self.name)?,
        };
        let is_copied = self.is_transposed() || self.features.is_some();
        let whole = if self.is_transposed() {
            whole.t()?
        } else {
            whole
        };
        if is_copied {
            let n: usize = self.shape.iter().product();
            check_next(n * whole.dtype().size_in_bytes())?;
        }
        let tensor = match &self.features {
            None => whole,
            Some(features) => {
                let rows = features
                    .ranges
                    .iter()
                    .map(|r| whole.narrow(0, r.start, r.len()));
                Tensor::cat(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)?
            }
        };
        Ok(tensor.contiguous()?)
    }

    /// Returns the part of the parameter for one rank, if a divided layer requests this shape; `None` if the shape is not a
    /// part along one dimension. If there are fewer key heads than ranks, consecutive ranks have the same part.
    pub fn cut(
        &self,
        shape: &[usize],
        config: &StackConfig,
        RankOf { rank, size }: RankOf,
    ) -> Option<Cut> {
        let pairs = || self.shape.iter().zip(shape);
        let axis = pairs().position(|(whole, part)| whole != part)?;
        let n_different = pairs().filter(|(whole, part)| whole != part).count();
        if shape.len() != self.shape.len() || n_different != 1 {
            return None;
        }
        let (whole, part) = (self.shape[axis], shape[axis]);
        let block = match ModelPlace::of(&self.role) {
            ModelPlace::Block(i) => config.blocks.get(i)?,
            ModelPlace::Stack | ModelPlace::OutsideBlocks => config.blocks.first()?,
        };
        let n_items = match &block.cross_attention {
            _ if self.role.contains(".feed_forward.") => whole,
            Some(cross) if self.role.contains(".cross_attention.") => cross.n_kv_heads,
            _ => block.facts().heads?.n_kv_heads,
        };
        let range = if n_items >= size {
            let (items, width) = (rank_range(n_items, rank, size), whole / n_items);
            items.start * width..items.end * width
        } else {
            let start = rank * whole.checked_div(part)? / size * part;
            start..start + part
        };
        Some(Cut { axis, range })
    }

    /// Like [`Self::read`], but reads only a part.
    ///
    /// # Errors
    /// Errors as for [`Self::read`].
    pub fn read_part(&self, files: &TensorFiles, cut: &Cut) -> Result<Tensor> {
        self.check_shape(files)?;
        let (n_columns, is_vector) = match self.shape[..] {
            [_] => (1, true),
            [_, n_columns] => (n_columns, false),
            _ => {
                let reason =
                    "it is neither a vector nor a matrix, and cannot be divided among ranks";
                return Err(Error::input(&self.role, reason));
            }
        };
        let (rows, columns) = match cut.axis {
            0 => (cut.range.clone(), 0..n_columns),
            _ => (0..self.shape[0], cut.range.clone()),
        };
        let (n, m) = (rows.len(), columns.len());
        let (rows, columns) = (self.rows_on_disk(rows), vec![columns]);
        let is_turned = self.is_transposed();
        let (rows, columns, dims) = match is_turned {
            true => (columns, rows, vec![m, n]),
            false => (rows, columns, vec![n, m]),
        };
        let on_disk = self.disk_shape();
        let (height, width) = match (is_vector, &on_disk[on_disk.len() - self.shape.len()..]) {
            (false, &[height, width]) => (height, width),
            (_, sizes) => (sizes[0], 1),
        };
        let first = self.item.map_or(0, |item| match item.is_joined {
            true => item.index * (height / item.total),
            false => item.index * height,
        });
        let mut spans = Vec::new();
        for row in rows.into_iter().flatten() {
            for columns in &columns {
                let start = (first + row) * width;
                let span = start + columns.start..start + columns.end;
                match spans.last_mut() {
                    Some(Range { end, .. }) if *end == span.start => *end = span.end,
                    _ => spans.push(span),
                }
            }
        }
        let tensor = files.read_spans(&self.name, &spans, dims)?;
        Ok(match (is_vector, is_turned) {
            (true, _) => tensor.flatten_all()?,
            (false, true) => {
                check_next(tensor.elem_count() * tensor.dtype().size_in_bytes())?;
                tensor.t()?.contiguous()?
            }
            (false, false) => tensor,
        })
    }

    /// Checks that the role's part of the tensor has as many output features as the layer requests, which a user's own table
    /// may get wrong.
    pub fn check_part(&self, family: &str) -> Result<()> {
        let Some(features) = &self.features else {
            return Ok(());
        };
        let n_features: usize = features.ranges.iter().map(ExactSizeIterator::len).sum();
        let expected = self.shape.first().copied().unwrap_or(0);
        if n_features == expected {
            return Ok(());
        }
        Err(Error::InvalidConfig(format!(
            "{}: the part of {} that family {family} gives it has {n_features} output features, \
             expected {expected}; check the rule's `part`, and the numbers of heads",
            self.role, self.name
        )))
    }

    /// Compares the shape in the header with the one that the layer requests.
    pub fn check_shape(&self, files: &TensorFiles) -> Result<()> {
        let expected = self.disk_shape();
        let info = files.find(&self.name)?;
        if info.shape == expected {
            return Ok(());
        }
        let error = Error::ShapeMismatch {
            path: info.path.to_path_buf(),
            tensor: self.name.clone(),
            expected,
            found: info.shape.to_vec(),
        };
        Err(with_keys(files, &self.name, error))
    }
}
