//! Rewrites advice in error messages: the library's messages name its items, for which the program has options.

/// Fragments of the library's messages, each with the program's replacement.
const IN_PLACE: &[(&str, &str)] = &[
    (
        "load with `Strictness::AllowUnused`",
        "give `--allow-unused`",
    ),
    ("`CheckpointOptions::config`", "`--config FILE`"),
    (", or read a plain feed-forward file with `PlainFile`", ""),
    ("in code with `CheckpointOptions::family`, or ", ""),
    (
        "`CheckpointOptions::family_file` (`Family::from_json_file` says how)",
        "`--family FILE`",
    ),
    ("`CheckpointOptions::family_file`", "`--family FILE`"),
    ("open both with `CheckpointOptions::whole`, or ", ""),
    ("`CheckpointOptions::part`", "`--part`"),
    ("`TextOptions::pooling`", "`--pooling NAME`"),
    (
        "`TextEmbedder::embed_as`",
        "`--task query` or `--task document`",
    ),
    ("`TextClassifier` gives", "`candle-blocks classify` gives"),
    (
        "`TokenClassifier` finds",
        "`candle-blocks tag` without --labels finds",
    ),
    ("`TokenClassifier`", "`candle-blocks tag`"),
    ("`Gliner`", "`candle-blocks tag --labels A,B`"),
    ("`MaskFiller`", "`candle-blocks fill`"),
    ("`QuestionAnswerer`", "`candle-blocks answer`"),
    ("`TextClassifier`", "`candle-blocks classify --pairs`"),
    ("`TextEmbedder`", "`candle-blocks embed`"),
    ("`ImageEmbedder`", "`candle-blocks embed --images`"),
    ("`Transcriber`", "`candle-blocks transcribe`"),
    ("`TimestampKind::Word`", "`--timestamps word`"),
    ("`ZeroShotImageClassifier`", "`--labels A,B`"),
    (
        "`ImageClassifier` gives its own labels",
        "without --labels it gives scores of its own",
    ),
    (
        "`SaveOptions::existing` with `ExistingFiles::Replace`",
        "`--replace`",
    ),
    ("`FilesBeside::First`", "`--files-beside`"),
    (" (`CheckpointOptions::beside`)", ""),
    (
        "`--adapter` or `CheckpointOptions::adapter`",
        "`--adapter DIR`",
    ),
    ("`CheckpointOptions::adapter`", "`--adapter DIR`"),
    (
        "`Checkpoint::from_hub` downloads a model of the Hugging Face Hub (feature hub)",
        "`--hub` downloads a model of the Hugging Face Hub",
    ),
    ("`Hub::revision`", "`--revision`"),
    (", which `Hub::file` fetches", ""),
    (
        "; fetch the weights alone with `Hub::file` and name their family",
        "",
    ),
    (" or pass `Hub::token` with a token", " to one"),
];
/// Types whose items have environment variables, which the messages name first.
const WITH_VARIABLES: [&str; 2] = ["`Hub::", "`Network::"];
/// Separators between a variable and such an item.
const BETWEEN: [&str; 5] = [", or pass ", " or pass ", ", or ", " or ", ", "];

/// Returns a library message with the program's advice.
pub fn of_program(mut message: String) -> String {
    for (library, program) in IN_PLACE {
        if message.contains(library) {
            message = message.replace(library, program);
        }
    }
    for start in WITH_VARIABLES {
        while let Some(at) = message.find(start) {
            let Some(length) = message[at + 1..].find('`') else {
                break;
            };
            let before = &message[..at];
            let between = BETWEEN.iter().find(|words| before.ends_with(**words));
            let from = at - between.map_or(0, |words| words.len());
            message.replace_range(from..at + length + 2, "");
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn advice_names_options_in_place_of_items() {
        for (library, program) in [
            (
                "m: 1 tensor(s) that bert does not know: x; load with `Strictness::AllowUnused` to leave them out",
                "m: 1 tensor(s) that bert does not know: x; give `--allow-unused` to leave them out",
            ),
            (
                "free space, or set another cache (HF_HUB_CACHE, `Hub::cache_dir`)",
                "free space, or set another cache (HF_HUB_CACHE)",
            ),
            (
                "check the name, and set HF_TOKEN or pass `Hub::token`",
                "check the name, and set HF_TOKEN",
            ),
            (
                "(unset HF_HUB_OFFLINE, or `Network::Online`), or name the cache (HF_HUB_CACHE, `Hub::cache_dir`)",
                "(unset HF_HUB_OFFLINE), or name the cache (HF_HUB_CACHE)",
            ),
            ("an open `Hub::", "an open `Hub::"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(of_program(library.to_string()), program);
        }
    }

    /// Items in messages from calls that the program does not make.
    const NOT_CALLED: [&str; 11] = [
        "`Checkpoint::save`",
        "`Checkpoint::trainable`",
        "`Loader::var_builder`",
        "`Lora::save`",
        "`Lora::save_peft_on`",
        "`Orientation::InOut`",
        "`Orientation::OutIn`",
        "`PlainFile::open_renamed`",
        "`PlainFile::with_norm`",
        "`PlainFile::with_orientation`",
        "`Family::from_json_file`", // part of a longer fragment
    ];

    /// Returns the source lines without comments.
    fn lines_of(folder: &Path, lines: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                lines_of(&path, lines);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.lines().map(str::trim_start);
                lines.extend(
                    code.filter(|line| !line.starts_with("//"))
                        .map(String::from),
                );
            }
        }
    }

    #[test]
    fn every_item_that_the_library_advises_has_an_option() {
        let mut lines = Vec::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for folder in ["src", "crates/base", "crates/files", "crates/layers"] {
            lines_of(&root.join(folder), &mut lines);
        }
        let mut n = 0;
        for line in &lines {
            let is_item = |word: &&str| {
                let path = word.split_once("::");
                path.is_some_and(|(name, item)| {
                    let letters =
                        |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
                    name.starts_with(char::is_uppercase) && letters(name) && letters(item)
                })
            };
            n += line.split('`').skip(1).step_by(2).filter(is_item).count();
            let said = of_program(line.clone());
            for item in said.split('`').skip(1).step_by(2).filter(is_item) {
                let item = format!("`{item}`");
                assert!(
                    NOT_CALLED.contains(&item.as_str()),
                    "the program has no {item}: {line}"
                );
            }
        }
        assert!(n > 20, "{n}");
    }
}
