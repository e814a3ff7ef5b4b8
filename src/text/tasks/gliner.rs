//! Finds entities of labels that a caller names: GLiNER.
//!
//! <https://github.com/urchade/GLiNER/blob/v0.2.29/gliner/model.py>

mod config;
mod head;

use std::path::Path;

use self::config::{FILE, GlinerConfig};
use self::head::{Head, HeadFiles};
use super::entities::Entity;
use crate::CheckpointOptions;
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::write::directory;
use crate::error::{Error, Result, getters, setters};
use crate::model::Model;
use crate::text::encoder::Encoder;
use crate::text::encoder::reading::{LengthLimit, TextReading};
use crate::text::options::{WeightForm, without_effect};
use crate::text::{TextOptions, Tokenizer};
use candle_blocks_tokenizers::Overlaps;

/// Finds entities in texts, of labels that the caller names: a GLiNER model with one encoder for labels and texts
/// (<https://github.com/urchade/GLiNER>).
///
/// ```no_run
/// use candle_blocks::text::Gliner;
/// let gliner = Gliner::open("gliner_small-v2.1")?;
/// for entity in &gliner.entities(&["Angela lives in Berlin."], &["person", "city"])?[0] {
///     println!("{} {} {:?}", entity.label, entity.word, entity.span); // person Angela Some(0..6)
/// }
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Gliner {
    encoder: Encoder,
    config: GlinerConfig,
    head: Head,
    threshold: f64,
    overlaps: Overlaps,
    notes: Vec<String>,
}

impl Gliner {
    /// Opens a model's directory, packed in f32 for inference on the CPU. [`TextOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`TextOptions::gliner`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().gliner(directory)
    }

    /// Opens the model at `path`.
    pub(in crate::text) fn load(
        path: &Path,
        options: &CheckpointOptions,
        form: &WeightForm,
    ) -> Result<Self> {
        let folder = if path.is_file() {
            directory(path)
        } else {
            path
        };
        let Some(json) = ConfigJson::open_named(&folder.join(FILE))? else {
            return Err(Error::InvalidConfig(format!(
                "{}: there is no {FILE}, which a model for labels of the caller has; `TokenClassifier` finds entities of a model's \
                 own labels",
                folder.display()
            )));
        };
        if !options.is_default() {
            let option = "family, part, config or adapter";
            return Err(without_effect(option, "a GLiNER model"));
        }
        let config = GlinerConfig::new(json)?;
        let has = |name: &str| folder.join(name).exists();
        if !has("tokenizer.json") && !has("tokenizer_config.json") {
            return Err(config.missing("model_name", "tokenizer.json"));
        }
        let mut n_tokens = None;
        if config.prompt.ids.is_none() {
            let mut tokenizer = Tokenizer::open(folder)?;
            config.prompt.add_markers(&mut tokenizer)?;
            n_tokens = Some(tokenizer.inner().get_vocab_size(true));
        }
        let (family, described) = config.encoder(n_tokens)?;
        let blocks = family.stack_config(&described)?.blocks;
        let d_encoder = blocks.first().map_or(0, |block| block.d_model());
        let mut files = HeadFiles {
            files: &TensorFiles::open(path)?,
            weights: form.weights(),
            names: Vec::new(),
        };
        let head = Head::new(&mut files, &config, d_encoder)?;
        let names: Vec<&str> = files.names.iter().map(String::as_str).collect();
        let options = options.clone().family(family.outside(&names));
        let checkpoint = options.described_by(described).open(path)?;
        let reading = TextReading {
            limit: LengthLimit::OfTokenizer,
            types: Some(false),
            ..TextReading::default()
        };
        let model = checkpoint.load(form.weights()).base_model()?;
        let mut encoder = Encoder::new(model, &checkpoint, reading)?;
        if n_tokens.is_some() {
            config.prompt.add_markers(&mut encoder.tokenizer)?;
        }
        config.prompt.label_id(&encoder.tokenizer)?;
        let mut notes = encoder.tokenizer.notes();
        let report = checkpoint.report();
        notes.extend(config.note(&report.unread_keys));
        if !report.unused.is_empty() {
            let names = report.unused.join(", ");
            notes.push(format!(
                "tensors that gliner does not know are left out: {names}"
            ));
        }
        Ok(Self {
            encoder,
            config,
            head,
            threshold: 0.5,
            overlaps: Overlaps::default(),
            notes,
        })
    }

    /// Refuses the folder of a GLiNER model, for a task without labels of the caller.
    ///
    /// # Errors
    /// If the folder has a `gliner_config.json`.
    pub(in crate::text) fn refuse(path: &Path) -> Result<()> {
        let reason = "belongs to a GLiNER model; `Gliner` finds entities of labels that you name";
        let json = ConfigJson::open_named(&path.join(FILE))?;
        json.map_or(Ok(()), |json| Err(json.error(&["model_type"], reason)))
    }

    setters! {
        /// Sets the score that an entity must exceed; without this, 0.5.
        with_threshold(threshold: f64) => threshold = threshold;
        /// Sets whether an entity may lie inside another one: the opposite of gliner's `flat_ner`. Otherwise, no two overlap.
        with_nested(nested: bool) => overlaps.nested = nested;
        /// Sets whether the same words may have several labels.
        with_multi_label(multi_label: bool) => overlaps.multi_label = multi_label;
    }

    getters! {
        /// Returns the encoder.
        model(&self) -> &Model => &self.encoder.model;
        /// Returns the number of words to which texts are shortened.
        max_words(&self) -> usize => self.config.max_len;
        /// Returns notes on settings in the files that results do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    /// Returns the entities in texts, in the order of their first words: gliner's `predict_entities`. A label that is named twice
    /// counts once.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there is no label, one is empty, or all labels have more tokens than the tokenizer's limit;
    /// [`Error::Text`] if a text gives a token that the model does not have, or has more than the model has positions.
    pub fn entities<T: AsRef<str>, L: AsRef<str>>(
        &self,
        texts: &[T],
        labels: &[L],
    ) -> Result<Vec<Vec<Entity>>> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        let mut distinct: Vec<&str> = Vec::new();
        for label in labels.iter().map(AsRef::as_ref) {
            if !distinct.contains(&label) {
                distinct.push(label);
            }
        }
        if distinct.is_empty() || distinct.contains(&"") {
            let reason = "name at least one label, and none that is empty, such as \"person\"";
            return Err(Error::input("labels", reason));
        }
        let (prompt, tokenizer) = (&self.config.prompt, &self.encoder.tokenizer);
        let encoded = tokenizer.encode_words(prompt, &distinct, &texts, self.config.max_len)?;
        let owners: Vec<usize> = encoded.iter().map(|of| of.text).collect();
        let tokens: Vec<_> = encoded.iter().map(|of| of.tokens.clone()).collect();
        self.encoder.check_parts(&tokens, &owners)?;
        let mut found = vec![Vec::new(); texts.len()];
        self.encoder.run(&tokens, |batch, output| {
            for (row, &index) in batch.iter().enumerate() {
                let of = &encoded[index];
                let hidden = output.last_hidden_state.get(row)?;
                let hidden = hidden.narrow(0, 0, of.tokens.ids.len())?; // [seq, d]
                let labeled = self.head.labeled(&hidden, of, self.threshold)?;
                let entities = self.overlaps.selected(labeled).into_iter().map(|one| {
                    let place = of.place(&one.words);
                    Entity {
                        label: distinct[one.label].to_string(),
                        score: one.score,
                        word: texts[of.text][place.bytes].to_string(),
                        index: None,
                        span: Some(place.characters),
                    }
                });
                found[of.text] = entities.collect();
            }
            Ok(())
        })?;
        Ok(found)
    }
}
