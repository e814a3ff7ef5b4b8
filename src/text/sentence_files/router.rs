//! Reads `router_config.json`: a `Router`, which has separate modules for queries and documents.

use std::path::Path;

use serde_json::{Map, Value};

use super::entry::Entry;
use super::{finished, optional};
use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;

/// The file, and the one before version 5.
const FILES: [&str; 2] = ["router_config.json", "config.json"];
/// The name for texts in a `Router` that also reads images.
const TEXT: &str = "text";

/// The route that reads each kind of text, by its index; `None` if there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::text) struct Roles {
    /// Texts without a role.
    pub unnamed: Option<usize>,
    pub query: Option<usize>,
    pub document: Option<usize>,
}

impl Roles {
    /// The roles if the first pipeline reads queries, and the second other texts.
    pub const EACH_TOKEN: Self = Self {
        unnamed: Some(1),
        query: Some(0),
        document: Some(1),
    };
    /// The roles if there is one route.
    pub const ONE: Self = Self {
        unnamed: Some(0),
        query: Some(0),
        document: Some(0),
    };
}

/// Reads the modules for each route that reads texts, and which texts it reads.
///
/// # Errors
/// If the file is malformed, a module has no type, or a route does not exist.
pub(super) fn open(folder: &Path) -> Result<(Vec<Vec<Entry>>, Roles)> {
    let file = FILES.map(|name| folder.join(name));
    let json = match optional(&file[0])? {
        Some(json) => json,
        None => ConfigJson::open(&file[1])?,
    };
    let object = |key: &str| -> Result<Map<String, Value>> {
        let found = json.at(key).and_then(Value::as_object).cloned();
        found.ok_or_else(|| json.error(&[key], "missing, expected an object"))
    };
    let (types, structure) = (object("types")?, object("structure")?);
    let parameters = json.section(&["parameters"])?;
    let names: Vec<&String> = structure.keys().collect();
    let route = |key: &str, name: &str| -> Result<usize> {
        let index = names.iter().position(|known| *known == name);
        index.ok_or_else(|| json.error(&[key], format!("{name:?} is no route; found {names:?}")))
    };
    let mut mappings = Map::new();
    let mut unnamed = None;
    let mut may_be_first = true;
    if let Some(parameters) = &parameters {
        let named = parameters.text(&["default_route"])?;
        unnamed = named
            .map(|name| route("parameters.default_route", &name))
            .transpose()?;
        may_be_first = parameters.flag(&["allow_empty_key"], true)?;
        mappings = parameters.parsed("route_mappings")?.unwrap_or_default();
    }
    let first = (may_be_first && !names.is_empty()).then_some(0);
    let unnamed = unnamed.or(first);
    // As in `Router._resolve_route`.
    let of_role = |role: Option<&str>| -> Result<Option<usize>> {
        let task = role.map_or("None".to_string(), |role| format!("'{role}'"));
        let keys = [
            format!("({task}, '{TEXT}')"),
            format!("({task}, None)"),
            format!("(None, '{TEXT}')"),
            "(None, None)".to_string(),
        ];
        let mut mapped = keys.iter().filter_map(|key| mappings.get(key)?.as_str());
        if let Some(name) = mapped.next() {
            return route("parameters.route_mappings", name).map(Some);
        }
        let mut direct = role.into_iter().chain([TEXT]);
        let named = |name| names.iter().position(|known| *known == name);
        let found = direct.find_map(named);
        Ok(match role {
            Some(_) => found, // a role without a route is an error there
            None => found.or(unnamed),
        })
    };
    let mut roles = Roles {
        unnamed: of_role(None)?,
        query: of_role(Some("query"))?,
        document: of_role(Some("document"))?,
    };
    let mut routes = Vec::new();
    let mut index_of = vec![None; names.len()];
    for role in [&mut roles.query, &mut roles.document, &mut roles.unnamed] {
        let Some(route) = *role else { continue };
        if index_of[route].is_none() {
            index_of[route] = Some(routes.len());
            let ids = structure[names[route]].as_array().cloned();
            let entries = ids.unwrap_or_default().into_iter().map(|id| {
                let id = id.as_str().unwrap_or_default();
                let class = types.get(id).and_then(Value::as_str);
                let missing =
                    || json.error(&["types"], format!("has no class for the module {id:?}"));
                Entry::new(
                    folder,
                    id,
                    class.ok_or_else(missing)?,
                    json.path(),
                    &format!("types.{id}"),
                )
            });
            routes.push(entries.collect::<Result<Vec<_>>>()?);
        }
        *role = index_of[route];
    }
    if routes.is_empty() {
        let reason = "has no route for texts";
        return Err(json.error(&["structure"], reason));
    }
    finished(&json, &[])?;
    Ok((routes, roles))
}
