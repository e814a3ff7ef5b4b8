//! Every family's table covers its checkpoint.

use crate::committed;

/// No table has a rule for tensors that its checkpoint lacks, or leaves a tensor unexplained.
#[test]
fn every_tensor_of_every_family_is_accounted_for() {
    for stack in committed::families() {
        let report = stack.open().report();
        assert!(report.unused.is_empty(), "{}\n{report}", stack.label());
        assert!(report.missing.is_empty(), "{}\n{report}", stack.label());
    }
}
