//! Enums on which only one folder matches: a further variant then changes that folder, and what the compiler names there.

use std::path::Path;

use crate::library;

/// An enum, the file that declares it, and the folders that may name its variants.
struct Kind {
    name: &'static str,
    file: &'static str,
    folders: &'static [&'static str],
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "MixerConfig",
        file: "crates/layers/src/config/mixer/mod.rs",
        folders: &[
            "crates/layers/src/config/mixer",
            "crates/layers/src/layers/mixer",
        ],
    },
    Kind {
        name: "Mixer",
        file: "crates/layers/src/layers/mixer/mod.rs",
        folders: &["crates/layers/src/layers/mixer"],
    },
    Kind {
        name: "LayerState",
        file: "crates/layers/src/layers/state/layer.rs",
        folders: &["crates/layers/src/layers/state"],
    },
    Kind {
        name: "EncoderState",
        file: "crates/layers/src/layers/state/encoder.rs",
        folders: &["crates/layers/src/layers/state"],
    },
];

/// Returns the variants that a file declares in an enum.
fn variants(code: &str, name: &str) -> Vec<String> {
    let begin = format!("pub enum {name} {{");
    let begin_hidden = format!("pub(crate) enum {name} {{");
    let lines = code
        .lines()
        .skip_while(|line| **line != begin && **line != begin_hidden);
    let lines = lines.skip(1).take_while(|line| *line != "}");
    let names = lines.filter_map(|line| {
        let variant = line.strip_prefix("    ")?;
        let is_variant = variant.starts_with(|c: char| c.is_ascii_uppercase());
        is_variant.then(|| {
            let end = variant.find(|c: char| !c.is_alphanumeric());
            variant[..end.unwrap_or(variant.len())].to_string()
        })
    });
    names.collect()
}

/// Returns the lines in `code` that name a variant of an enum, or rename or open the enum.
fn named<'c>(code: &'c str, name: &str, variants: &[String]) -> Vec<&'c str> {
    let mut forms: Vec<String> = variants.iter().map(|v| format!("{name}::{v}")).collect();
    forms.extend(["::*", "::{", " as "].map(|more| format!("{name}{more}")));
    let is_whole = |line: &str, at: usize| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    };
    let names = |line: &&str| {
        let code = line.split("//").next().unwrap();
        forms.iter().any(|form| {
            let mut places = code.match_indices(&form[..]);
            places.any(|(at, _)| is_whole(code, at))
        })
    };
    code.lines().filter(names).collect()
}

#[test]
fn only_one_folder_matches_on_each_kind() {
    let library = library();
    let mut wrong = Vec::new();
    for kind in &KINDS {
        let declared = library
            .iter()
            .find(|(path, _)| path == Path::new(kind.file));
        // A published package leaves the other packages out.
        let Some((_, declared)) = declared else {
            assert!(crate::is_published(), "{}", kind.file);
            continue;
        };
        let variants = variants(declared, kind.name);
        assert!(!variants.is_empty(), "{} has no variants", kind.name);
        let is_outside = |path: &Path| !kind.folders.iter().any(|of| path.starts_with(of));
        for (path, code) in library.iter().filter(|(path, _)| is_outside(path)) {
            let lines = named(code, kind.name, &variants);
            wrong.extend(
                lines
                    .iter()
                    .map(|line| format!("{}: {line}", path.display())),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "ask for the mixer's facts, or for its attention, instead of matching on its kind:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_match_on_a_kind_is_found() {
    let declared = "pub enum Mixer {\n    /// One.\n    Attention(Attention),\n    Ssm,\n}\n";
    let variants = variants(declared, "Mixer");
    assert_eq!(variants, ["Attention", "Ssm"]);
    let found = |code: &str| named(code, "Mixer", &variants).len();
    assert_eq!(
        found("match x {\n Mixer::Attention(_) => 1,\n Mixer::Ssm => 2 }"),
        2
    );
    assert_eq!(found("use crate::layers::Mixer::*;"), 1);
    assert_eq!(found("use crate::layers::Mixer as M;"), 1);
    assert_eq!(found("Mixer::new(x) // Mixer::Ssm\nOtherMixer::Ssm"), 0);
}
