//! Keys in `config.json` that do not belong to one family.

pub(crate) mod attribute_names;
pub(crate) mod context_length;
pub(crate) mod disputed;
pub(crate) mod harmless;
pub(crate) mod initializer_range;
pub(crate) mod labels;
pub(crate) mod masking;
pub(crate) mod rotary;
