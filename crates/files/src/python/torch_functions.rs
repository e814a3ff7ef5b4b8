//! The functions, classes and types that PyTorch's pickles of tensors name.

use safetensors::Dtype;

/// The cure for a file that contains more than tensors.
pub(super) const SAVE_TENSORS: &str = "save the tensors alone, with `torch.save(model.state_dict(), file)` or `safetensors.torch.save_file`";

/// A PyTorch function, class or type that pickles of tensors name.
#[derive(Clone, Copy, Debug)]
pub(super) enum TorchFunction {
    OrderedDict,
    /// Builds a tensor with the storage's dtype.
    Tensor,
    /// Builds a tensor with a given dtype.
    TypedTensor,
    Parameter,
    /// Calls the given function.
    FromType,
    /// A class for [`Self::FromType`], which only adds attributes.
    Class,
    /// A tensor's dtype.
    Type(Dtype),
    /// A storage whose elements have this dtype.
    Storage(Dtype),
    /// A storage of bytes, for elements of any dtype.
    BytesStorage,
}

impl TorchFunction {
    /// # Errors
    /// If tensors do not need this name: a pickle that calls other functions could do anything.
    pub fn named(module: &str, name: &str) -> Result<Self, String> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Self::Tensor,
            ("torch._utils", "_rebuild_tensor_v3") => Self::TypedTensor,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Self::Parameter
            }
            ("torch._tensor", "_rebuild_from_type_v2") => Self::FromType,
            ("torch", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer") => Self::Class,
            ("torch.storage", "UntypedStorage") => Self::BytesStorage,
            ("torch", "DoubleStorage") => Self::Storage(Dtype::F64),
            ("torch", "FloatStorage") => Self::Storage(Dtype::F32),
            ("torch", "HalfStorage") => Self::Storage(Dtype::F16),
            ("torch", "BFloat16Storage") => Self::Storage(Dtype::BF16),
            ("torch", "LongStorage") => Self::Storage(Dtype::I64),
            ("torch", "IntStorage") => Self::Storage(Dtype::I32),
            ("torch", "ShortStorage") => Self::Storage(Dtype::I16),
            ("torch", "CharStorage") => Self::Storage(Dtype::I8),
            ("torch", "ByteStorage") => Self::Storage(Dtype::U8),
            ("torch", "BoolStorage") => Self::Storage(Dtype::BOOL),
            ("torch", "float8_e4m3fn") => Self::Type(Dtype::F8_E4M3),
            ("torch", "float8_e5m2") => Self::Type(Dtype::F8_E5M2),
            ("torch", "float8_e8m0fnu") => Self::Type(Dtype::F8_E8M0),
            ("torch", "uint16") => Self::Type(Dtype::U16),
            ("torch", "uint32") => Self::Type(Dtype::U32),
            ("torch", "uint64") => Self::Type(Dtype::U64),
            _ => {
                return Err(format!(
                    "its pickle names \"{module}.{name}\", which no tensor needs, and nothing in a \
                     pickle is executed here; {SAVE_TENSORS}"
                ));
            }
        })
    }
}
