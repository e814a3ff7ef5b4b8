//! The known families. Each has one file, which contains only a table; `build.rs` finds the files and lists their tables in `FILES`.

include!(concat!(env!("OUT_DIR"), "/families.rs"));

pub(super) use self::decoder_alone::is_of_decoder;
pub(super) use self::rotary_bert::type_of_code;
pub(super) use self::tables::{all, of_type};
pub(super) use self::text_side::TextSide;
