//! A cache as named tensors, which a file can hold.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use candle_blocks_kernels::attention::{OperandFormat, PanelShape};
use candle_core::{DType, Device, Result, Tensor, bail};

use crate::layers::visit::join;

/// The tensors that a state becomes, by their names.
pub(crate) type Named = HashMap<String, Tensor>;

/// The tensors of a cache that is made from them, at one place of their names.
pub(crate) struct Given<'a> {
    tensors: &'a Named,
    prefix: String,
    read: &'a RefCell<BTreeSet<String>>,
}

impl Given<'_> {
    /// Calls `work` with the tensors, and refuses names that it did not read.
    pub fn all<R>(tensors: &Named, work: impl FnOnce(&Given) -> Result<R>) -> Result<R> {
        let read = RefCell::default();
        let prefix = String::new();
        let made = work(&Given {
            tensors,
            prefix,
            read: &read,
        })?;
        let read = read.into_inner();
        match tensors.keys().filter(|name| !read.contains(*name)).min() {
            Some(name) => bail!("the cache has {name}, which this stack does not; {CURE}"),
            None => Ok(made),
        }
    }

    /// Returns the tensors whose names go on with `name`.
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        let (tensors, read) = (self.tensors, self.read);
        Self {
            tensors,
            prefix: join(&self.prefix, name),
            read,
        }
    }

    /// Returns a tensor.
    pub fn find(&self, name: &str) -> Option<Tensor> {
        let name = join(&self.prefix, name);
        let found = self.tensors.get(&name)?.clone();
        self.read.borrow_mut().insert(name);
        Some(found)
    }

    /// Returns a tensor's dimensions, unread, if it has any.
    pub fn dims(&self, name: &str) -> Option<&[usize]> {
        let found = self.tensors.get(&join(&self.prefix, name))?;
        Some(found.dims()).filter(|dims| !dims.is_empty())
    }

    /// Returns a tensor with this many dimensions, of which the first is given.
    ///
    /// # Errors
    /// If there is none, or it has another shape.
    pub fn tensor(&self, name: &str, rank: usize, first: usize) -> Result<Tensor> {
        let Some(found) = self.find(name) else {
            bail!("the cache lacks {}; {CURE}", join(&self.prefix, name));
        };
        if found.rank() != rank || found.dim(0)? != first {
            return self.misfit(
                name,
                &found,
                format!("{rank} dimensions, the first {first}"),
            );
        }
        Ok(found)
    }

    /// Returns the tensor with this number, whose first dimension is the batch.
    ///
    /// # Errors
    /// If there is none, or it has another batch.
    pub fn of_batch(&self, number: usize, batch: usize) -> Result<Tensor> {
        let name = number.to_string();
        let rank = self.dims(&name).map_or(1, <[usize]>::len);
        self.tensor(&name, rank, batch)
    }

    /// Returns a tensor of this many whole values.
    ///
    /// # Errors
    /// If there is none, or it has another length or type, or a number is negative.
    pub fn numbers(&self, name: &str, n: usize) -> Result<Vec<usize>> {
        let found = self.tensor(name, 1, n)?;
        if found.dtype() != DType::I64 {
            return self.misfit(name, &found, "I64".to_string());
        }
        let all = found.to_device(&Device::Cpu)?.to_vec1::<i64>()?;
        let all = all.into_iter().map(usize::try_from).collect();
        match all {
            Ok(all) => Ok(all),
            Err(_) => self.misfit(name, &found, "no negative number".to_string()),
        }
    }

    /// Returns a sequence's rows as a packed attention with this shape keeps them: `n` of them, on the CPU.
    ///
    /// # Errors
    /// If there are none, or they have another shape or type.
    pub fn of_sequence(&self, name: &str, n: usize, shape: PanelShape) -> Result<Tensor> {
        let found = self.tensor(name, 2, n)?;
        let width = shape.n_kv_heads * shape.head_dim;
        let dtype = dtype_of(shape.stored);
        if found.dim(1)? != width || found.dtype() != dtype {
            return self.misfit(name, &found, format!("[{n}, {width}] and {dtype:?}"));
        }
        found.to_device(&Device::Cpu)
    }

    /// # Errors
    /// Always: the positions of a layer, and those of the cache.
    pub fn other_positions<R>(&self, found: [usize; 2], seen: usize) -> Result<R> {
        let name = join(&self.prefix, "numbers");
        bail!("the cache's {name} has positions {found:?}, expected {seen}; {CURE}")
    }

    /// Returns how many elements all tensors have.
    pub fn n_elements(&self) -> usize {
        self.tensors.values().map(Tensor::elem_count).sum()
    }

    /// # Errors
    /// Always: what was found, and what is expected.
    pub fn misfit<R>(&self, name: &str, found: &Tensor, expected: String) -> Result<R> {
        let name = join(&self.prefix, name);
        let (dims, dtype) = (found.dims(), found.dtype());
        bail!(
            "the cache's {name} has shape {dims:?} and type {dtype:?}, expected {expected}; {CURE}"
        )
    }
}

const CURE: &str = "give the tensors of a cache that this stack made, packed or not as it is";

/// Returns the type in which rows of a format are stored.
pub(super) fn dtype_of(stored: OperandFormat) -> DType {
    match stored {
        OperandFormat::F32 => DType::F32,
        OperandFormat::Bf16 => DType::BF16,
    }
}

/// Returns whole values as a tensor.
pub(crate) fn of_numbers(numbers: &[usize]) -> Result<Tensor> {
    let numbers: Vec<i64> = numbers.iter().map(|&n| n as i64).collect();
    Tensor::new(numbers, &Device::Cpu)
}
