//! The operations that candle's backends support, from a table that was read from their sources.

use std::{collections::HashMap, sync::OnceLock};

use candle_core::{Result, bail};

use super::Operation;
use crate::ops::cpu::Backend;

/// Written for one candle version. A test requires that it is read again for another.
const TABLE: &str = include_str!("candle-0.11.1.txt");

/// An operation's verdict for each backend, and the place in the backend's sources.
struct Verdict {
    verdicts: [&'static str; 2],
    places: [&'static str; 2],
    note: &'static str,
}

fn lines() -> &'static HashMap<(&'static str, &'static str), Verdict> {
    static LINES: OnceLock<HashMap<(&str, &str), Verdict>> = OnceLock::new();
    LINES.get_or_init(|| {
        let mut all = HashMap::new();
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let &[operation, types, cuda, metal, cuda_place, metal_place, note] = &cells[..] else {
                continue;
            };
            for types in types.split_whitespace() {
                let line = Verdict {
                    verdicts: [cuda, metal],
                    places: [cuda_place, metal_place],
                    note,
                };
                all.insert((operation, types), line);
            }
        }
        all
    })
}

/// Checks an operation.
///
/// # Errors
/// If the backend does not have the operation, or not for these operands, or the table lacks it.
pub(super) fn check(operation: &Operation, backend: Backend) -> Result<()> {
    let (name, types) = (operation.name, operation.types.as_str());
    // Indices and conditions may have the values' type.
    let alike = format!("{types}:{types}");
    let known = |types| lines().get(&(name, types));
    let Some(line) = known(types).or_else(|| known(&alike)) else {
        bail!("{name} of {types}: the table of candle's back ends does not have it");
    };
    let of = backend as usize;
    let holds = |condition: &str| match condition {
        "elements>0" => operation.layouts.iter().all(|(dims, _)| !dims.contains(&0)),
        "contiguous" => operation
            .layouts
            .iter()
            .all(|(dims, strides)| is_contiguous(dims, strides)),
        "columns<=1024" => operation.layouts[0]
            .0
            .last()
            .is_none_or(|&columns| columns <= 1024),
        _ => false,
    };
    let has = match line.verdicts[of] {
        "yes" => true,
        "yes-if" => {
            let conditions = line.note.split(';').next().unwrap_or_default();
            let conditions = conditions.trim().trim_start_matches("if ");
            conditions
                .split(" and ")
                .all(|one| holds(one.trim().trim_start_matches("if ").trim()))
        }
        _ => false,
    };
    if !has {
        bail!(
            "{name} of {types} {:?}: {backend:?} does not compute it ({}, {})",
            operation.layouts,
            line.places[of],
            line.note
        );
    }
    Ok(())
}

fn is_contiguous(dims: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
        let fits = dim <= 1 || stride == expected;
        expected *= dim;
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_matches_the_candle_version_in_use() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let lock = std::fs::read_to_string(lock).unwrap();
        for name in ["candle-core", "candle-nn"] {
            let version = lock
                .split(&format!("name = \"{name}\"\nversion = \""))
                .nth(1);
            let version = version.and_then(|rest| rest.split('"').next()).unwrap();
            let first = TABLE.lines().next().unwrap();
            assert!(
                first.starts_with(&format!("# candle {version}: ")),
                "{name} {version}: read its back ends again, and write the table anew ({first})"
            );
        }
    }

    #[test]
    fn every_line_has_a_verdict_and_its_places() {
        assert!(lines().len() > 300, "{}", lines().len());
        for ((operation, types), line) in lines() {
            for of in [0, 1] {
                let known = ["yes", "yes-if", "no"].contains(&line.verdicts[of]);
                assert!(known, "{operation} {types}: {}", line.verdicts[of]);
                assert!(
                    line.places[of].contains(".rs:")
                        || line.places[of].contains(".cu:")
                        || line.places[of].contains(".metal:"),
                    "{operation} {types}"
                );
            }
        }
    }

    #[test]
    fn an_operation_that_a_back_end_lacks_is_refused() {
        let operation = |name, types: &str, dims: Vec<usize>, strides| Operation {
            name,
            types: types.to_string(),
            layouts: vec![(dims, strides)],
            bytes: 0,
        };
        let cast = operation("to_dtype", "f32->f64", vec![2], vec![1]);
        assert!(check(&cast, Backend::Cuda).is_ok());
        assert!(check(&cast, Backend::Metal).is_err());
        let strided = operation("softmax_last_dim", "f32", vec![2, 3], vec![1, 2]);
        let empty = operation("softmax_last_dim", "f32", vec![0, 3], vec![3, 1]);
        let unknown = operation("cumsum", "f32", vec![2], vec![1]);
        for lacking in [strided, empty, unknown] {
            assert!(check(&lacking, Backend::Cuda).is_err(), "{lacking:?}");
        }
    }
}
