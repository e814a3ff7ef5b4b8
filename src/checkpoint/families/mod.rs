//! The known families: one file each, holding a table and nothing else, and one line here.

use crate::checkpoint::scheme::Family;

mod bert;
mod gpt2;
mod llama;

/// Every known family.
pub(crate) fn all() -> Vec<Family> {
    vec![bert::family(), gpt2::family(), llama::family()]
}
