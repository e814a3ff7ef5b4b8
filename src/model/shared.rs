//! Parameters that two stacks share.

use std::collections::BTreeMap;

use crate::layers::ParameterSource;

/// Redirects a request for a shared parameter: a role in `shared` is read under the role that it maps to.
pub(super) fn sharing<'p>(
    source: ParameterSource<'p>,
    shared: &BTreeMap<String, String>,
) -> ParameterSource<'p> {
    if shared.is_empty() {
        return source;
    }
    let shared = shared.clone();
    source.renamed(move |role| shared.get(role).map_or(role, String::as_str).to_string())
}
