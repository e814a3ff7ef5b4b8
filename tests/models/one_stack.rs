//! The committed whole models with one stack.

use crate::whole::{Whole, wholes};

/// Returns the models that need no second stack.
pub fn of_one_stack() -> Vec<Whole> {
    let is_one = |whole: &Whole| whole.open().second_stack().unwrap().is_none();
    wholes().into_iter().filter(is_one).collect()
}
