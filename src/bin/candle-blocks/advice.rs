//! Advice that the program's user can follow: the library's messages name its items, and the program has options for them.

/// Fragments of the library's messages, and of the program's in their place.
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
    ("`CheckpointOptions::part`", "`--part`"),
    ("`TextOptions::pooling`", "`--pooling NAME`"),
    ("`TextClassifier`", "`candle-blocks classify --pairs`"),
    ("`TextEmbedder`", "`candle-blocks embed`"),
    ("`Existing::Replace`", "`--replace`"),
    (", `Hub::cache_dir`)", ")"),
    (" or `Hub::endpoint`", ""),
    (" or pass `Hub::token` with a token", " to one"),
    (" or pass `Hub::token`", ""),
    ("`Hub::revision`", "`--revision`"),
    (", which `Hub::file` fetches", ""),
    (
        "; fetch the weights alone with `Hub::file` and name their family",
        "",
    ),
];

/// A message of the library as the program says it.
pub fn of_program(message: String) -> String {
    let replace =
        |message: String, (library, program): &(&str, &str)| match message.contains(library) {
            true => message.replace(library, program),
            false => message,
        };
    IN_PLACE.iter().fold(message, replace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_options_in_place_of_items() {
        let said = "m: 1 tensor(s) that bert does not know: x; load with `Strictness::AllowUnused` to leave them out";
        assert_eq!(
            of_program(said.to_string()),
            "m: 1 tensor(s) that bert does not know: x; give `--allow-unused` to leave them out"
        );
        assert_eq!(of_program("nothing".to_string()), "nothing");
    }
}
