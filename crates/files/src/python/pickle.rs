//! Reads pickles without executing anything. It knows the instructions that `torch.save` writes, and the few PyTorch
//! functions that describe tensors, whose results it computes itself. Every other name in a pickle is refused.
//!
//! Values are indices into lists. So nothing is copied when it is referenced again, nothing is visited recursively, and a
//! list that contains itself is its own index in its own list. The format is described in
//! <https://github.com/python/cpython/blob/main/Lib/pickletools.py>.

use std::collections::HashMap;

use safetensors::Dtype;

use super::torch_functions::{SAVE_TENSORS, TorchFunction};

pub(super) type Result<T> = std::result::Result<T, String>;

/// A value in a pickle.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickleValue {
    None,
    Bool,
    Int(i64),
    Float,
    /// A byte range in the pickle.
    Text(u32, u32),
    Function(TorchFunction),
    /// An index into [`Pickle::lists`]. In a dict, keys and values alternate.
    Tuple(usize),
    List(usize),
    Dict(usize),
    /// An index into [`Pickle::storages`].
    Storage(usize),
    /// An index into [`Pickle::views`].
    Tensor(usize),
}

impl PickleValue {
    /// Returns the value's type in Python, for messages.
    pub fn kind(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool => "a bool",
            Self::Int(_) => "an int",
            Self::Float => "a float",
            Self::Text(..) => "a str",
            Self::Function(_) => "a function or class",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Dict(_) => "a dict",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "a tensor",
        }
    }
}

/// A storage that one or more tensors view.
#[derive(Debug)]
pub(super) struct Storage {
    /// Its archive entry's name.
    pub key: (PickleValue, usize),
    /// `None`: bytes for any dtype.
    pub dtype: Option<Dtype>,
}

/// A tensor as a strided view into a storage.
#[derive(Debug)]
pub(super) struct StridedView {
    pub storage: usize,
    pub dtype: Dtype,
    /// The first element's index.
    pub first: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// A pickle reader's state.
pub(super) struct Pickle<'b> {
    bytes: &'b [u8],
    at: usize,
    stack: Vec<PickleValue>,
    /// The stack's heights at its marks.
    marks: Vec<usize>,
    memo: HashMap<u32, PickleValue>,
    pub lists: Vec<Vec<PickleValue>>,
    pub storages: Vec<Storage>,
    pub views: Vec<StridedView>,
    /// How many bytes values may still take.
    budget: usize,
}

impl<'b> Pickle<'b> {
    /// Reads a pickle whose values may take about `budget` bytes, and returns it with its value.
    pub fn read(bytes: &'b [u8], budget: usize) -> Result<(Self, PickleValue)> {
        let mut pickle = Self {
            bytes,
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            lists: Vec::new(),
            storages: Vec::new(),
            views: Vec::new(),
            budget,
        };
        loop {
            let instruction = pickle.array::<1>()?[0];
            if instruction == b'.' {
                let value = pickle.pop()?;
                return Ok((pickle, value));
            }
            pickle.run(instruction)?;
        }
    }

    /// Accounts for `n_bytes` more.
    pub fn take(&mut self, n_bytes: usize) -> Result<()> {
        let rest = self.budget.checked_sub(n_bytes);
        self.budget = rest.ok_or(
            "it describes more values than a file of this size can have tensors; download it again",
        )?;
        Ok(())
    }

    pub fn text(&self, value: PickleValue) -> Option<&'b str> {
        match value {
            PickleValue::Text(start, end) => {
                std::str::from_utf8(&self.bytes[start as usize..end as usize]).ok()
            }
            _ => None,
        }
    }

    pub fn new_list(&mut self, values: Vec<PickleValue>) -> Result<usize> {
        self.take(size_of::<Vec<PickleValue>>() + size_of_val(&values[..]))?;
        self.lists.push(values);
        Ok(self.lists.len() - 1)
    }

    fn run(&mut self, instruction: u8) -> Result<()> {
        let value = match instruction {
            0x80 => {
                return match self.array()? {
                    [2] => Ok(()),
                    [protocol] => Err(format!(
                        "its pickle has protocol {protocol}, expected 2; save it without `pickle_protocol`: if you trust the file, whose \
                         code this runs, with `torch.save(torch.load(file, weights_only=False), file)`"
                    )),
                };
            }
            b'(' => {
                self.take(size_of::<usize>())?;
                self.marks.push(self.stack.len());
                return Ok(());
            }
            b'N' => PickleValue::None,
            0x88 | 0x89 => PickleValue::Bool,
            b'K' => PickleValue::Int(u8::from_le_bytes(self.array()?).into()),
            b'M' => PickleValue::Int(u16::from_le_bytes(self.array()?).into()),
            b'J' => PickleValue::Int(i32::from_le_bytes(self.array()?).into()),
            0x8a => self.long()?,
            b'G' => {
                self.array::<8>()?;
                PickleValue::Float
            }
            b'X' => self.unicode()?,
            b'c' => PickleValue::Function(TorchFunction::named(self.line()?, self.line()?)?),
            b')' => PickleValue::Tuple(self.new_list(Vec::new())?),
            b']' => PickleValue::List(self.new_list(Vec::new())?),
            b'}' => PickleValue::Dict(self.new_list(Vec::new())?),
            b't' => self
                .marked()
                .and_then(|values| self.new_list(values))
                .map(PickleValue::Tuple)?,
            0x85..=0x87 => {
                let start = self
                    .stack
                    .len()
                    .checked_sub(usize::from(instruction - 0x84));
                let start = start
                    .filter(|&start| start >= self.floor())
                    .ok_or_else(empty)?;
                let values = self.stack.split_off(start);
                PickleValue::Tuple(self.new_list(values)?)
            }
            b'q' => return self.remember(1),
            b'r' => return self.remember(4),
            b'h' | b'j' => self.remembered(if instruction == b'h' { 1 } else { 4 })?,
            b'a' => {
                let value = self.pop()?;
                return self.extend(vec![value]);
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                return self.extend(vec![key, value]);
            }
            b'e' | b'u' => {
                let values = self.marked()?;
                return self.extend(values);
            }
            b'Q' => {
                let id = self.pop()?;
                self.storage(id)?
            }
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                self.call(function, arguments)?
            }
            b'b' => {
                // A dict's attributes: `_metadata`, the modules' versions, which do not change tensors.
                let (attributes, object) = (self.pop()?, self.pop()?);
                match (attributes, object) {
                    (PickleValue::Dict(_), PickleValue::Dict(_)) => object,
                    _ => {
                        let kind = object.kind();
                        return Err(format!(
                            "its pickle sets attributes of {kind}, which are not supported"
                        ));
                    }
                }
            }
            _ => {
                return Err(format!(
                    "its pickle has the instruction {instruction:#04x} at byte {}, which `torch.save` does not write for tensors; {SAVE_TENSORS}",
                    self.at - 1
                ));
            }
        };
        self.take(size_of::<PickleValue>())?;
        self.stack.push(value);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let found = self
            .bytes
            .get(self.at..)
            .and_then(|rest| rest.first_chunk());
        self.at += N;
        found.copied().ok_or_else(ends)
    }

    /// Reads an unsigned integer with `n` bytes.
    fn number(&mut self, n: usize) -> Result<u32> {
        match n {
            1 => Ok(self.array::<1>()?[0].into()),
            _ => Ok(u32::from_le_bytes(self.array()?)),
        }
    }

    fn long(&mut self) -> Result<PickleValue> {
        let n = self.number(1)? as usize;
        let bytes = self.bytes.get(self.at..self.at + n).ok_or_else(ends)?;
        self.at += n;
        let sign = bytes
            .last()
            .map_or(0, |last| if last & 0x80 != 0 { 0xff } else { 0 });
        let mut wide = [sign; 8];
        let place = wide
            .get_mut(..n)
            .ok_or("its pickle has an integer of more than 64 bits")?;
        place.copy_from_slice(bytes);
        Ok(PickleValue::Int(i64::from_le_bytes(wide)))
    }

    fn unicode(&mut self) -> Result<PickleValue> {
        let n = self.number(4)? as usize;
        let end = self.at.checked_add(n).ok_or_else(ends)?;
        let text = self.bytes.get(self.at..end).ok_or_else(ends)?;
        std::str::from_utf8(text)
            .map_err(|error| format!("a str in its pickle is not UTF-8: {error}"))?;
        let value = PickleValue::Text(self.at as u32, end as u32);
        self.at = end;
        Ok(value)
    }

    /// Returns the text before the next line break.
    fn line(&mut self) -> Result<&'b str> {
        const MAX_BYTES: usize = 200;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let n = rest.iter().take(MAX_BYTES).position(|&byte| byte == b'\n');
        let n = n.ok_or("its pickle has a name without an end")?;
        self.at += n + 1;
        std::str::from_utf8(&rest[..n])
            .map_err(|error| format!("a name in its pickle is not UTF-8: {error}"))
    }

    fn pop(&mut self) -> Result<PickleValue> {
        match self.stack.len() > self.floor() {
            true => self.stack.pop().ok_or_else(empty),
            false => Err(empty()),
        }
    }

    /// Returns the stack's height at the last mark, below which values are only removed together with that mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// Removes and returns the values since the last mark.
    fn marked(&mut self) -> Result<Vec<PickleValue>> {
        let mark = self.marks.pop().ok_or_else(empty)?;
        Ok(self.stack.split_off(mark))
    }

    fn remember(&mut self, n: usize) -> Result<()> {
        let key = self.number(n)?;
        let value = *self.stack.last().ok_or_else(empty)?;
        self.take(2 * size_of::<(u32, PickleValue)>())?;
        self.memo.insert(key, value);
        Ok(())
    }

    fn remembered(&mut self, n: usize) -> Result<PickleValue> {
        let key = self.number(n)?;
        let value = self.memo.get(&key).copied();
        value.ok_or_else(|| format!("its pickle refers to the value {key}, which does not exist"))
    }

    /// Appends values to the list or dict on top of the stack.
    fn extend(&mut self, values: Vec<PickleValue>) -> Result<()> {
        self.take(size_of_val(&values[..]))?;
        match self.stack.last() {
            Some(PickleValue::List(list)) => self.lists[*list].extend(values),
            Some(PickleValue::Dict(dict)) if values.len().is_multiple_of(2) => {
                self.lists[*dict].extend(values)
            }
            _ => {
                return Err("its pickle adds values to something other than a list or dict".into());
            }
        }
        Ok(())
    }

    /// Returns the storage for this persistent id: `("storage", type, key, device, number of elements)`.
    fn storage(&mut self, id: PickleValue) -> Result<PickleValue> {
        let wrong = || {
            format!(
                "its pickle refers to {} outside of it, expected a storage",
                id.kind()
            )
        };
        let PickleValue::Tuple(list) = id else {
            return Err(wrong());
        };
        let [
            kind,
            PickleValue::Function(class),
            key,
            _,
            PickleValue::Int(n),
        ] = self.lists[list][..]
        else {
            return Err(wrong());
        };
        let dtype = match class {
            TorchFunction::Storage(dtype) => Some(dtype),
            TorchFunction::BytesStorage => None,
            _ => return Err(wrong()),
        };
        if self.text(kind) != Some("storage") {
            return Err(wrong());
        }
        let n =
            usize::try_from(n).map_err(|_| format!("its pickle has a storage of {n} elements"))?;
        self.take(size_of::<Storage>())?;
        self.storages.push(Storage {
            key: (key, n),
            dtype,
        });
        Ok(PickleValue::Storage(self.storages.len() - 1))
    }

    /// Returns a call's result, computed here.
    fn call(&mut self, function: PickleValue, arguments: PickleValue) -> Result<PickleValue> {
        let (mut function, mut arguments) = (function, arguments);
        if let (PickleValue::Function(TorchFunction::FromType), PickleValue::Tuple(list)) =
            (function, arguments)
            && let [
                inner,
                PickleValue::Function(TorchFunction::Class),
                of_inner @ PickleValue::Tuple(_),
                _,
            ] = self.lists[list][..]
        {
            (function, arguments) = (inner, of_inner);
        }
        let PickleValue::Tuple(list) = arguments else {
            return Err(format!(
                "its pickle calls a function with {}, expected a tuple",
                arguments.kind()
            ));
        };
        let PickleValue::Function(function) = function else {
            return Err(format!("its pickle calls {}", function.kind()));
        };
        // The last argument says whether to negate or conjugate values; an empty dict says no.
        let is_plain = |rest: &[PickleValue]| match rest {
            [] => true,
            [PickleValue::Dict(with)] => self.lists[*with].is_empty(),
            _ => false,
        };
        let found = match (function, &self.lists[list][..]) {
            (TorchFunction::OrderedDict, []) => {
                return self.new_list(Vec::new()).map(PickleValue::Dict);
            }
            (TorchFunction::Parameter, [tensor @ PickleValue::Tensor(_), ..]) => {
                return Ok(*tensor);
            }
            (
                TorchFunction::Tensor,
                [
                    PickleValue::Storage(of),
                    first,
                    shape,
                    strides,
                    _,
                    _,
                    rest @ ..,
                ],
            ) if is_plain(rest) => {
                let dtype = self.storages[*of].dtype;
                dtype.map(|dtype| (*of, dtype, [*first, *shape, *strides]))
            }
            (
                TorchFunction::TypedTensor,
                [
                    PickleValue::Storage(of),
                    place @ ..,
                    PickleValue::Function(TorchFunction::Type(dtype)),
                ],
            ) if place.len() == 5 => Some((*of, *dtype, [place[0], place[1], place[2]])),
            _ => None,
        };
        let (storage, dtype, [first, shape, strides]) = found.ok_or_else(|| {
            format!(
                "its pickle calls {function:?} with arguments that make no plain tensor; {SAVE_TENSORS}"
            )
        })?;
        let PickleValue::Int(first) = first else {
            return Err("a tensor in its pickle has no beginning".into());
        };
        let view = StridedView {
            storage,
            dtype,
            first: usize::try_from(first)
                .map_err(|_| format!("a tensor in its pickle begins at element {first}"))?,
            shape: self.sizes(shape)?,
            strides: self.sizes(strides)?,
        };
        self.take(size_of::<StridedView>())?;
        self.views.push(view);
        Ok(PickleValue::Tensor(self.views.len() - 1))
    }

    /// Reads a tuple of non-negative integers.
    fn sizes(&mut self, tuple: PickleValue) -> Result<Vec<usize>> {
        let PickleValue::Tuple(list) = tuple else {
            return Err(format!(
                "a tensor in its pickle has {} for sizes or strides, expected a tuple",
                tuple.kind()
            ));
        };
        // Many tensors may refer to the same tuple.
        self.take(self.lists[list].len() * size_of::<usize>())?;
        let size = |value: &PickleValue| match value {
            PickleValue::Int(size) => usize::try_from(*size).ok(),
            _ => None,
        };
        let sizes: Option<Vec<usize>> = self.lists[list].iter().map(size).collect();
        sizes.ok_or_else(|| "a tensor in its pickle has invalid sizes or strides".into())
    }
}

fn ends() -> String {
    "its pickle ends too early: it is cut short or damaged; download it again".into()
}

fn empty() -> String {
    "its pickle reads a value where there is none: it is damaged; download it again".into()
}
