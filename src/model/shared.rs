//! Parameters that two stacks share.

use std::collections::BTreeMap;

use candle_nn::VarBuilder;

/// A source that is asked for another role's parameter where a role of `shared` has that.
pub(super) fn sharing<'v>(vb: VarBuilder<'v>, shared: &BTreeMap<String, String>) -> VarBuilder<'v> {
    if shared.is_empty() {
        return vb;
    }
    let shared = shared.clone();
    let prefix = vb.prefix();
    let start = match prefix.as_str() {
        "" => String::new(),
        prefix => format!("{prefix}."),
    };
    let renamed = vb.root().rename_f(move |name| {
        let first = name.strip_prefix(&start).and_then(|role| shared.get(role));
        first.map_or(name.to_string(), |first| format!("{start}{first}"))
    });
    match prefix.as_str() {
        "" => renamed,
        prefix => renamed.set_prefix(prefix),
    }
}
