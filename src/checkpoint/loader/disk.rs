//! Inverts loading: converts tensors by role to the names and layouts on disk.

use std::collections::HashMap;

use candle_core::Tensor;

use crate::checkpoint::plan::source::{Item, StoredParameter};
use crate::checkpoint::plan::{Plan, unknown_role};
use crate::error::{Error, Result};

/// Converts tensors by role (weights or gradients) to the names, layouts and fusion of the original files, in the plan's
/// order. Roles that `by_role` lacks are left out, but a fused tensor needs all of its roles. A role that the plan lacks is
/// an error. Only the first dimension is checked, because an adapter's factors are converted here too.
pub(crate) fn to_disk(
    plan: &Plan,
    by_role: &HashMap<String, Tensor>,
) -> Result<Vec<(String, Tensor)>> {
    for (role, tensor) in by_role {
        let source = plan.source(role);
        let source = source.ok_or_else(|| unknown_role(role, &plan.sources))?;
        if tensor.dims().first() != source.shape.first() {
            let (found, expected) = (tensor.dims(), &source.shape);
            let reason = format!("it has shape {found:?}, expected {expected:?}");
            return Err(Error::input(role, reason));
        }
    }
    let mut names: Vec<&str> = Vec::new();
    let mut sources: HashMap<&str, Vec<&StoredParameter>> = HashMap::new();
    for source in &plan.sources {
        if by_role.contains_key(&source.role) {
            let shared = sources.entry(&source.name).or_default();
            if shared.is_empty() {
                names.push(&source.name);
            }
            shared.push(source);
        }
    }
    let assemble = |name: &str| Ok((name.to_string(), assemble(&sources[name], by_role)?));
    names.into_iter().map(assemble).collect()
}

/// Assembles one tensor on disk from the roles that share it.
pub(crate) fn assemble(
    sources: &[&StoredParameter],
    by_role: &HashMap<String, Tensor>,
) -> Result<Tensor> {
    let Some(Item {
        total, is_joined, ..
    }) = sources.iter().find_map(|source| source.item)
    else {
        return assemble_item(sources, by_role);
    };
    let mut items = Vec::with_capacity(total);
    for index in 0..total {
        let is_of_item =
            |source: &&&StoredParameter| source.item.is_some_and(|item| item.index == index);
        let sources: Vec<&StoredParameter> = sources.iter().filter(is_of_item).copied().collect();
        if sources.is_empty() {
            return Err(Error::InvalidConfig(format!(
                "a tensor stacks {total} parameters, but number {index} is not given"
            )));
        }
        items.push(assemble_item(&sources, by_role)?);
    }
    Ok(match is_joined {
        true => Tensor::cat(&items, 0)?,
        false => Tensor::stack(&items, 0)?,
    })
}

/// Assembles a tensor, or one item of a stacked tensor.
fn assemble_item(
    sources: &[&StoredParameter],
    by_role: &HashMap<String, Tensor>,
) -> Result<Tensor> {
    let mut pieces: Vec<(usize, Tensor)> = Vec::new(); // first row on disk, rows
    let mut covered = 0;
    for source in sources {
        let tensor = &by_role[&source.role];
        let Some(features) = &source.features else {
            pieces.push((0, tensor.clone()));
            continue;
        };
        let mut row = 0;
        for range in &features.ranges {
            pieces.push((range.start, tensor.narrow(0, row, range.len())?));
            row += range.len();
        }
        covered += row;
    }
    let split = sources
        .iter()
        .find_map(|source| Some((source, source.features.as_ref()?)));
    if let Some((source, features)) = split
        && covered != features.total
    {
        return Err(Error::InvalidConfig(format!(
            "{} holds {} output features, but the roles given cover {covered}",
            source.name, features.total
        )));
    }
    pieces.sort_by_key(|(start, _)| *start);
    let mut filled = 0;
    for (start, rows) in pieces.iter().filter(|_| pieces.len() > 1) {
        if *start != filled {
            let roles: Vec<&str> = sources.iter().map(|source| source.role.as_str()).collect();
            return Err(Error::InvalidConfig(format!(
                "{} cannot be assembled from {}, which share some of its output features; give \
                 each role its own part in the family's table",
                sources[0].name,
                roles.join(", ")
            )));
        }
        filled += rows.dim(0)?;
    }
    let rows: Vec<&Tensor> = pieces.iter().map(|(_, rows)| rows).collect();
    let tensor = Tensor::cat(&rows, 0)?;
    let tensor = if sources[0].is_transposed() {
        tensor.t()?
    } else {
        tensor
    };
    let mut tensor = tensor.contiguous()?;
    for _ in 0..sources[0].leading_ones {
        tensor = tensor.unsqueeze(0)?;
    }
    Ok(tensor)
}
