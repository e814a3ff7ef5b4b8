//! The program's notes.

/// A note, and its tests, by their functions' names.
pub struct Note {
    /// Words of the note, which the tests quote.
    pub words: &'static str,
    /// The test in which a model gets the note.
    pub given: &'static str,
    /// The test in which a similar model does not get it. This test quotes the words, or expects no note at all.
    pub without: &'static str,
}

/// Texts that pass on a note from another place, where it is listed, and the sentences of `NotAsStored`, which
/// `tests/loading/as_stored.rs` expects for files with and without such matrices.
pub const PASSED_ON: &[&str] = &[
    "note: {note}",
    "note: {path}: {of_type}",
    "note: {first}{others}: {note}",
    "{}, since {note}",
    "{}: {note}",
];

const fn note(words: &'static str, given: &'static str, without: &'static str) -> Note {
    Note {
        words,
        given,
        without,
    }
}

/// A test that expects no note from usual models.
const USUAL: &str = "usual_models_get_no_note";

pub const NOTES: &[Note] = &[
    note(
        "the ranges are not in a .npy file",
        "a_numpy_file_holds_the_array_of_the_safetensors_file",
        "a_numpy_file_holds_the_array_of_the_safetensors_file",
    ),
    // Files.
    note(
        "is no token of the vocabulary",
        "masks_are_filled_with_the_targets_alone_as_by_transformers",
        "masks_are_filled_with_the_targets_alone_as_by_transformers",
    ),
    note(
        "keys that are not read",
        "a_key_of_config_json_that_nothing_reads_is_noted_by_name",
        "a_key_of_config_json_that_nothing_reads_is_noted_by_name",
    ),
    note(
        "does not know are left out",
        "tensors_that_the_model_does_not_know_are_left_out_if_the_option_says_so",
        USUAL,
    ),
    note(
        "no part of the model reads",
        "an_embedding_that_no_part_of_the_model_reads_is_named_in_a_note",
        USUAL,
    ),
    note(
        "a class whose head this program does not have",
        "a_class_whose_head_is_unknown_is_noted",
        "a_class_whose_head_is_unknown_is_noted",
    ),
    note(
        "computed without rounding",
        "a_rounding_that_is_not_followed_is_noted",
        "a_rounding_that_is_not_followed_is_noted",
    ),
    note(
        "dequantized to f32",
        "weights_that_are_dequantized_unasked_are_noted",
        "weights_that_are_dequantized_unasked_are_noted",
    ),
    note(
        "are not read; --files-beside",
        "files_beside_take_precedence_only_if_requested",
        USUAL,
    ),
    note(
        "the adapter beside the weights in",
        "an_adapter_beside_the_model_is_applied_and_reported",
        USUAL,
    ),
    note(
        "has unknown keys, which are not followed",
        "an_adapter_beside_the_model_is_applied_and_reported",
        USUAL,
    ),
    note(
        "depend on attn_implementation",
        "a_key_that_the_attentions_of_transformers_follow_differently_is_noted",
        "a_key_that_the_attentions_of_transformers_follow_differently_is_noted",
    ),
    note(
        "the Hub was not reached",
        "a_hub_that_is_not_reached_is_noted",
        "a_hub_that_is_not_reached_is_noted",
    ),
    // Texts.
    note(
        "keys that nothing reads here",
        "keys_of_a_tokenizer_that_nothing_reads_are_noted_by_every_command",
        USUAL,
    ),
    note(
        "other tokens",
        "a_class_of_tokenizers_that_is_not_followed_is_named",
        USUAL,
    ),
    note(
        "is the model's own code, which is not run",
        "a_transformer_of_the_models_own_is_noted",
        "a_transformer_of_the_models_own_is_noted",
    ),
    note(
        "not used",
        "files_that_sentence_transformers_does_not_read_are_noted",
        USUAL,
    ),
    note(
        "max_length is",
        "texts_are_shortened_as_the_files_say",
        "texts_are_shortened_as_the_files_say",
    ),
    note(
        "context length",
        "texts_beyond_the_context_length_have_a_note_where_nothing_shortens_them",
        "texts_beyond_the_context_length_have_a_note_where_nothing_shortens_them",
    ),
    note(
        "context length is",
        "tokens_beyond_the_context_length_have_a_note_from_safetensors_and_gguf",
        USUAL,
    ),
    note(
        "SetFit",
        "the_classifier_of_setfit_beside_a_body_is_not_passed_over",
        "the_classifier_of_setfit_beside_a_body_is_not_passed_over",
    ),
    note(
        "pre is missing",
        "a_byte_level_file_without_the_name_of_its_pre_tokenizer_is_noted",
        "a_byte_level_file_without_the_name_of_its_pre_tokenizer_is_noted",
    ),
    // Generation.
    note(
        "no length is given",
        "a_length_that_ends_a_text_is_noted",
        "a_length_that_ends_a_text_is_noted",
    ),
    note(
        "ends at the model's limit",
        "a_length_that_ends_a_text_is_noted",
        "a_length_that_ends_a_text_is_noted",
    ),
    note(
        "do_sample",
        "recommended_sampling_is_noted_and_followed_on_request",
        "recommended_sampling_is_noted_and_followed_on_request",
    ),
    note(
        "generation does not follow",
        "keys_of_generation_that_are_not_followed_are_noted",
        "keys_of_generation_that_are_not_followed_are_noted",
    ),
    note(
        "each prompt is continued once",
        "keys_of_generation_that_are_not_followed_are_noted",
        "keys_of_generation_that_are_not_followed_are_noted",
    ),
    // Runs and comparisons.
    note(
        "there are no logits",
        "a_causal_model_without_its_head_gives_no_logits_and_a_note_says_so",
        USUAL,
    ),
    note(
        "the model does not read",
        "a_note_names_the_inputs_that_the_model_does_not_read",
        "a_note_names_the_inputs_that_the_model_does_not_read",
    ),
    note(
        "values that are not finite; it was written",
        "an_input_that_is_not_finite_is_noted",
        "an_input_that_is_not_finite_is_noted",
    ),
    note(
        "so does the input",
        "an_input_that_is_not_finite_is_noted",
        "an_input_that_is_not_finite_is_noted",
    ),
    note(
        "holds a value that is not finite",
        "a_weight_that_is_not_finite_is_a_mismatch_that_names_it",
        "an_input_that_is_not_finite_is_noted",
    ),
    note(
        "have no tolerance",
        "a_comparison_that_packing_must_fail_says_why",
        "a_comparison_that_packing_must_fail_says_why",
    ),
    note(
        "give --dtype bf16 with --precision bf16",
        "a_comparison_that_packing_must_fail_says_why",
        "a_comparison_that_packing_must_fail_says_why",
    ),
    note(
        "give --dtype f16 with --precision f16",
        "a_comparison_that_packing_must_fail_says_why",
        "a_comparison_that_packing_must_fail_says_why",
    ),
    note(
        "threads compute, since more would wait",
        "more_threads_than_cores_are_noted",
        "more_threads_than_cores_are_noted",
    ),
    note("the results so far are in", "keeps_what_was_made", USUAL),
    // Tasks.
    note(
        "names no label for entailment",
        "labels_without_a_name_for_entailment_are_noted",
        "labels_without_a_name_for_entailment_are_noted",
    ),
    // Quantizing.
    note(
        "no tokenizer",
        "tensors_stored_in_another_type_are_noted_with_the_reason",
        USUAL,
    ),
    note(
        "interrupted; nothing was written",
        "quantizing_that_a_signal_ends_leaves_nothing",
        "quantizing_that_a_signal_ends_leaves_nothing",
    ),
    note(
        "are not whole blocks of",
        "tensors_stored_in_another_type_are_noted_with_the_reason",
        USUAL,
    ),
    note(
        "whole groups of",
        "inexpressible_settings_and_existing_files_are_refused_without_leftovers",
        USUAL,
    ),
];
