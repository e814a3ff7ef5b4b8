//! The committed whole models of one stack.

use crate::whole::{Whole, wholes};

/// Those of which no other stack is needed.
pub fn of_one_stack() -> Vec<Whole> {
    let is_one = |whole: &Whole| whole.open().other_stack().unwrap().is_none();
    wholes().into_iter().filter(is_one).collect()
}
