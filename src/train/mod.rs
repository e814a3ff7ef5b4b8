//! What training needs beside gradients: fresh parameters.

mod fresh;

pub use fresh::Fresh;
