//! A page in HTML, in one file: it has no script, and reads nothing from elsewhere.

use std::fmt::{Display, Write as _};
use std::path::Path;

use anyhow::Result;

use crate::output::{Escaped, write_text};

const STYLE: &str =
    "body { font: 15px/1.5 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0 }
td, th { padding: 2px 8px; text-align: left; vertical-align: bottom; border-bottom: 1px solid #ddd }
.map th.column { writing-mode: vertical-rl; transform: rotate(180deg); font-weight: normal }
.map td { text-align: right; border: 1px solid #fff; min-width: 2.6em; color: #000 }
.failed { background: #a00; color: #fff !important; font-weight: bold }
pre { overflow-x: auto; background: #f6f6f6; padding: 1em }";

/// A page, written from the top.
pub struct Page(String);

/// A tensor's cell in a heat map.
pub struct Cell<'c> {
    pub name: &'c str,
    /// The share of what is allowed, 1 at the limit.
    pub share: f64,
    pub passed: bool,
    pub note: String,
}

impl Page {
    pub fn new(title: &str) -> Self {
        let title = escaped(title);
        Self(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n<h1>{title}</h1>\n"
        ))
    }

    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>", escaped(text));
    }

    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escaped(text));
    }

    /// Adds text with its own line breaks and columns.
    pub fn printed(&mut self, text: &str) {
        let lines: Vec<String> = text.lines().map(escaped).collect();
        let _ = writeln!(self.0, "<pre>{}</pre>", lines.join("\n"));
    }

    pub fn table<const N: usize>(
        &mut self,
        header: [&str; N],
        rows: impl Iterator<Item = [String; N]>,
    ) {
        let row = |tag: &str, cells: &[String]| {
            let cells = cells
                .iter()
                .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let header = row("th", &header.map(str::to_string));
        let rows: String = rows.map(|cells| row("td", &cells)).collect();
        let _ = writeln!(self.0, "<table>\n{header}{rows}</table>");
    }

    /// Adds a map with a row for each layer and a column for each name in it, green where little is used, and red where too
    /// much is.
    pub fn heat_map(&mut self, cells: &[Cell]) {
        let (mut rows, mut columns): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        let places: Vec<(&str, &str)> = cells.iter().map(|cell| place(cell.name)).collect();
        for (row, column) in &places {
            for (name, all) in [(row, &mut rows), (column, &mut columns)] {
                if !all.contains(name) {
                    all.push(name);
                }
            }
        }
        let head =
            { columns.iter() }.map(|name| format!("<th class=\"column\">{}</th>", escaped(name)));
        let head: String = head.collect();
        let _ = writeln!(self.0, "<table class=\"map\">\n<tr><th></th>{head}</tr>");
        for row in &rows {
            let _ = write!(self.0, "<tr><th>{}</th>", escaped(row));
            for column in &columns {
                let found = places.iter().position(|place| place == &(*row, *column));
                let _ = match found.map(|i| &cells[i]) {
                    Some(cell) => write!(self.0, "{}", of_cell(cell)),
                    None => write!(self.0, "<td></td>"),
                };
            }
            self.0.push_str("</tr>\n");
        }
        self.0.push_str("</table>\n");
    }

    /// Writes the whole page, or nothing.
    pub fn write(mut self, path: &Path) -> Result<()> {
        self.0.push_str("</html>\n");
        write_text(path, &self.0)
    }
}

fn of_cell(cell: &Cell) -> String {
    let look = match cell.passed {
        // From green at a hundredth to yellow at the limit.
        true => {
            let used = (cell.share.max(1e-2).log10() + 2.0) / 2.0;
            format!(
                "style=\"background: hsl({:.0} 70% 75%)\"",
                130.0 - 80.0 * used
            )
        }
        false => "class=\"failed\"".to_string(),
    };
    let said = escaped(format_args!("{}: {}", cell.name, cell.note));
    let share = match cell.share.is_finite() {
        true => format!("{:.0} %", 100.0 * cell.share),
        false => "–".to_string(),
    };
    format!("<td {look} title=\"{said}\">{share}</td>")
}

/// Returns a tensor's layer and its name in it: what comes before and after the layer's number.
fn place(name: &str) -> (&str, &str) {
    let mut end = 0;
    for segment in name.split_inclusive('.') {
        end += segment.len();
        let number = segment.trim_end_matches('.');
        if !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && end < name.len()
        {
            return (name[..end].trim_end_matches('.'), &name[end..]);
        }
    }
    ("", name)
}

/// Returns text in which nothing is markup, and no character is hidden.
fn escaped(text: impl Display) -> String {
    let text = Escaped(text).to_string();
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_in_the_row_of_its_layer() {
        for (name, row, column) in [
            (
                "layers.10.feed_forward.input",
                "layers.10",
                "feed_forward.input",
            ),
            ("encoder.layers.0.output", "encoder.layers.0", "output"),
            ("logits", "", "logits"),
            ("grad.layers.2.w1.weight", "grad.layers.2", "w1.weight"),
            ("stages.3", "", "stages.3"),
        ] {
            assert_eq!(place(name), (row, column));
        }
    }
}
