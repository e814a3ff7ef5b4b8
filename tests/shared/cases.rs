//! Properties of random cases.

use arbtest::{
    arbitrary::{Result, Unstructured},
    arbtest,
};

/// The number of bytes for a random case, more than any property uses: after the last byte all choices are 0.
const BYTES: u32 = 256;

/// Holds a property against at least `n` cases. One that fails is printed as a seed; with that as `ARBTEST_SEED`, the same
/// case is drawn again.
pub fn for_cases(n: usize, mut property: impl FnMut(&mut Unstructured) -> Result<()>) {
    let mut held = 0;
    while held < n {
        let counted = |draw: &mut Unstructured| {
            property(draw)?;
            assert!(!draw.is_empty(), "a case takes more than {BYTES} bytes");
            held += 1;
            Ok(())
        };
        arbtest(counted).size_min(BYTES).size_max(BYTES).run();
    }
}
