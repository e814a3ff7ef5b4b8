//! A checkpoint's tokenizer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::{
    DecoderWrapper, EncodeInput, Encoding, InputSequence, ModelWrapper, TruncationDirection,
    TruncationParams,
};

use super::TruncationStrategy;
use super::added_tokens::{Known, added_tokens};
use super::tokenizer_class::{Origin, TokenizerClass};
use super::tokenizer_config::{SPECIAL_TOKENS, cleaned, unread};
use super::truncation::TokenLimit;
use crate::Checkpoint;
use crate::checkpoint::GgufTokenizer;
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{TensorFiles, is_gguf, is_named, read_limited};
use crate::checkpoint::python_json;
use crate::config::getters;
use crate::error::{Error, Result};

/// The size limit: ten times the largest published file (Gemma's).
const MAX_BYTES: u64 = 400_000_000;

/// The beginning of a Git LFS pointer, which stands for another file.
const GIT_LFS: &[u8] = b"version https://git-lfs";

/// A checkpoint's `tokenizer.json`, and the settings in `tokenizer_config.json` beside it.
///
/// Truncation and padding settings in the file come from training and are not used, as in transformers.
///
/// ```no_run
/// use candle_blocks::text::Tokenizer;
/// let tokenizer = Tokenizer::open("all-MiniLM-L6-v2")?;
/// let ids = tokenizer.encode("A man is eating food.")?.ids;
/// assert_eq!(tokenizer.decode(&ids)?, "a man is eating food.");
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    /// The folder with additional files; a GGUF file contains everything.
    folder: Option<PathBuf>,
    config: Option<ConfigJson>,
    limit: Option<TokenLimit>,
    /// The tokenizer without truncation, once a text has needed it.
    whole: OnceLock<Box<tokenizers::Tokenizer>>,
    /// The side on which `tokenizer.json` truncates, if `tokenizer_config.json` does not set it.
    side: TruncationDirection,
    decoding: Decoding,
    /// A token that texts must not contain.
    fill_token: Option<String>,
    unread_keys: Vec<String>,
    named_tokens: BTreeMap<String, String>,
    class_note: Option<String>,
}

/// Settings that affect decoding.
#[derive(Clone, Debug, Default)]
struct Decoding {
    /// Bytes outside the vocabulary are tokens such as `<0xE2>`.
    has_byte_fallback: bool,
    /// Spaces before punctuation are removed: `clean_up_tokenization_spaces`.
    cleans: bool,
    /// The suffix of a word's last token, which becomes a space.
    word_end: Option<String>,
}

impl Decoding {
    fn of(
        inner: &tokenizers::Tokenizer,
        config: Option<&ConfigJson>,
        word_end: Option<&str>,
    ) -> Result<Self> {
        let flag = |key: &str| config.map_or(Ok(false), |config| config.flag(&[key], false));
        let cleans = flag("clean_up_tokenization_spaces")?;
        // As in transformers, which checks twice because cleaning would damage BPE texts.
        let is_bpe = matches!(inner.get_model(), ModelWrapper::BPE(_));
        let insists =
            flag("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")?;
        Ok(Self {
            has_byte_fallback: inner.get_decoder().is_some_and(falls_back),
            cleans: cleans && (!is_bpe || insists),
            word_end: word_end.map(str::to_string),
        })
    }
}

fn falls_back(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteFallback(_) => true,
        DecoderWrapper::Sequence(all) => all.get_decoders().iter().any(falls_back),
        _ => false,
    }
}

/// A text, or a pair of texts, as token ids. [`Tokenizer::encode`](crate::text::Tokenizer::encode) returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenizedText {
    /// The ids, including special tokens.
    pub ids: Vec<u32>,
    /// Each token's type, which tells the two texts of a pair apart.
    pub types: Vec<u32>,
    /// The number of last tokens to which the model does not attend.
    pub(super) n_unattended: usize,
}

impl From<&Encoding> for TokenizedText {
    fn from(encoding: &Encoding) -> Self {
        Self {
            ids: encoding.get_ids().to_vec(),
            types: encoding.get_type_ids().to_vec(),
            n_unattended: 0,
        }
    }
}

impl Tokenizer {
    /// Opens the tokenizer in a checkpoint's directory, or in a GGUF file. Without `tokenizer.json`, the class of transformers that
    /// the directory names reads its own files, such as `vocab.txt` (BERT) or a model of SentencePiece (T5).
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if there is neither a `tokenizer.json` nor the files of its class, or they are malformed;
    /// [`Error::ConfigKey`] if a GGUF file's tokenizer is malformed, or has an unknown type.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        if is_gguf(directory)
            && let Some(words) = GgufTokenizer::read(&TensorFiles::open(directory)?)?
        {
            return Self::of_words(words);
        }
        let path = directory.join("tokenizer.json");
        if !is_named(&path) {
            return Self::of_class_files(directory, path);
        }
        let bytes = read_limited(&path, MAX_BYTES, "tokenizer.json")?;
        check_pointer(&path, &bytes)?;
        let malformed = |error| {
            failed(
                &path,
                format!("not a tokenizer: {error}; download it again"),
            )
        };
        let bytes = python_json::after_mark(&bytes).map_err(|e| malformed(e.into()))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(malformed)?;
        let side = inner
            .get_truncation()
            .map_or(TruncationDirection::Right, |t| t.direction);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(malformed)?;
        let config = ConfigJson::open_named(&directory.join("tokenizer_config.json"))?;
        let class = TokenizerClass::of(directory, config.as_ref(), &inner)?;
        let opened = Self::assembled(directory, path, inner, config, class, Origin::TokenizerJson)?;
        Ok(Self { side, ..opened })
    }

    /// Makes the tokenizer of a folder without `tokenizer.json` from the files that its class reads.
    fn of_class_files(directory: &Path, path: PathBuf) -> Result<Self> {
        let config = ConfigJson::open_named(&directory.join("tokenizer_config.json"))?;
        let Some((mut class, file)) = TokenizerClass::with_files(directory, config.as_ref())?
        else {
            let reason = match TokenizerClass::in_python(directory) {
                Some(class) => format!(
                    "missing, and transformers' {class} does not write one; build it from the \
                     class's own files with the tokenizers package, or give the model token \
                     ids"
                ),
                None => format!(
                    "missing, and there are no other files of its class that are read ({}); copy it from the model's repository, or \
                     write it with `python -c 'import transformers as t, sys; \
                     t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' {}`",
                    TokenizerClass::known_files(),
                    directory.display()
                ),
            };
            return Err(failed(&path, reason));
        };
        let tokens = added_tokens(directory, config.as_ref(), &class, &Known::default())?;
        let inner = class.read_files(&file, &tokens)?;
        let (path, origin) = (file.path, Origin::ClassFiles);
        Self::assembled(directory, path, inner, config, class, origin)
    }

    /// Adds to a model's vocabulary what its class and the files beside it say.
    fn assembled(
        directory: &Path,
        path: PathBuf,
        mut inner: tokenizers::Tokenizer,
        config: Option<ConfigJson>,
        class: TokenizerClass,
        origin: Origin,
    ) -> Result<Self> {
        if let Some(config) = &config
            && config.flag(&["split_special_tokens"], false)?
        {
            inner.set_encode_special_tokens(true);
        }
        let known = inner
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .iter();
        let known = known.map(|(&id, token)| (token.content.clone(), (id.into(), token.clone())));
        let tokens = added_tokens(directory, config.as_ref(), &class, &known.collect())?;
        if tokens.replaces {
            inner = without_added_tokens(&inner);
        }
        class.build(&mut inner, config.as_ref(), &tokens.named)?;
        let added = inner.add_tokens(tokens.all);
        added.map_err(|error| failed(&path, format!("its added tokens do not fit: {error}")))?;
        class.finish(&mut inner, config.as_ref(), &tokens.named, origin)?;
        let unread_keys = config.as_ref().map(|config| unread(config, &class));
        Ok(Self {
            decoding: Decoding::of(&inner, config.as_ref(), class.word_end())?,
            fill_token: class.fill_token(config.as_ref())?,
            unread_keys: unread_keys.unwrap_or_default(),
            class_note: class.note().map(str::to_string),
            named_tokens: tokens.named,
            inner,
            config,
            folder: Some(directory.to_path_buf()),
            path,
            limit: None,
            whole: OnceLock::new(),
            side: TruncationDirection::Right,
        })
    }

    /// Opens a checkpoint's tokenizer: the one in a GGUF file, or else the `tokenizer.json` beside the weights.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        match checkpoint.words()? {
            Some(words) => Self::of_words(words),
            None => Self::open(checkpoint.files().directory()),
        }
    }

    fn of_words(words: GgufTokenizer) -> Result<Self> {
        let inner = super::gguf::tokenizer(&words)?;
        let config = ConfigJson::given(&words.path, words.tokenizer_config());
        let named = SPECIAL_TOKENS.iter().filter_map(|name| {
            let token = config.special_token(name).ok()??;
            Some((name.to_string(), token))
        });
        Ok(Self {
            named_tokens: named.collect(),
            decoding: Decoding::of(&inner, None, None)?,
            fill_token: None,
            unread_keys: Vec::new(),
            class_note: None,
            inner,
            config: Some(config),
            folder: None,
            path: words.path,
            limit: None,
            whole: OnceLock::new(),
            side: TruncationDirection::Right,
        })
    }

    getters! {
        /// Returns the path of `tokenizer.json`, of the vocabulary in its place, or of the GGUF file.
        path(&self) -> &Path => &self.path;
        /// Returns the `tokenizer_config.json`, if there is one, or a GGUF file's equivalent.
        config(&self) -> Option<&ConfigJson> => self.config.as_ref();
        /// Returns the tokenizer from the `tokenizers` library.
        inner(&self) -> &tokenizers::Tokenizer => &self.inner;
    }

    /// Returns the keys in `tokenizer_config.json` that nothing reads and that are not known to change nothing.
    pub fn unread_keys(&self) -> &[String] {
        &self.unread_keys
    }

    /// Returns notes on [`Self::unread_keys`], and on a class in transformers that may produce other tokens.
    pub fn notes(&self) -> Vec<String> {
        let keys = self.unread_keys.join(", ");
        let keys = (!keys.is_empty())
            .then(|| format!("tokenizer_config.json has keys that nothing reads here: {keys}"));
        self.class_note.iter().cloned().chain(keys).collect()
    }

    /// Returns the folder with files beside `tokenizer.json`; `None` if there is none.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the special tokens by name, such as `bos_token`, which chat templates read.
    pub(super) fn named_tokens(&self) -> &BTreeMap<String, String> {
        &self.named_tokens
    }

    /// Returns the maximum number of tokens that `tokenizer_config.json` sets for the model.
    ///
    /// # Errors
    /// If it is not a number.
    pub fn max_length(&self) -> Result<Option<usize>> {
        let Some(config) = &self.config else {
            return Ok(None);
        };
        // A file without a limit has 1e30.
        let length = config.optional_number(&["model_max_length", "max_len"])?;
        Ok(length.filter(|&n| n < 1e9).map(|n| n as usize))
    }

    /// From now on, truncates texts to this number of tokens, including special ones; in a pair, truncates the longer text.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if there are more special tokens than that.
    pub fn truncate(&mut self, max_length: usize) -> Result<()> {
        self.truncate_by(max_length, TruncationStrategy::LongestFirst)
    }

    /// Like [`Self::truncate`], with a strategy for pairs. There is no `stride`: truncated tokens are not returned.
    ///
    /// # Errors
    /// The errors of [`Self::truncate`].
    pub fn truncate_by(&mut self, max_length: usize, strategy: TruncationStrategy) -> Result<()> {
        let added = self.inner.get_post_processor();
        let n_special = added.map_or(0, |p| tokenizers::PostProcessor::added_tokens(p, true));
        if max_length <= n_special {
            return Err(self.fail(format!(
                "adds {n_special} special tokens, but a text may have only {max_length}"
            )));
        }
        let side = self.config.as_ref().map(|c| c.text(&["truncation_side"]));
        let direction = match side.transpose()?.flatten().as_deref() {
            Some("left") => TruncationDirection::Left,
            Some("right") => TruncationDirection::Right,
            None => self.side,
            Some(other) => {
                let reason = format!(
                    "tokenizer_config.json: truncation_side is {other:?}, expected left or right"
                );
                return Err(self.fail(reason));
            }
        };
        let truncation = TruncationParams {
            max_length,
            direction,
            ..TruncationParams::default()
        };
        self.limit = Some(TokenLimit {
            max_length,
            direction,
            strategy,
        });
        let truncated = self.inner.with_truncation(Some(truncation)).map(drop);
        truncated.map_err(|error| self.fail(error.to_string()))
    }

    /// Converts every text to lower case first, unless the tokenizer does so itself.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the added tokens do not allow it.
    pub fn lower_case(&mut self) -> Result<()> {
        let lowers =
            |normalizer: &NormalizerWrapper| matches!(normalizer, NormalizerWrapper::Lowercase(_));
        let mut all = match self.inner.get_normalizer() {
            None => Vec::new(),
            Some(NormalizerWrapper::Sequence(sequence)) => sequence.as_ref().to_vec(),
            Some(one) => vec![one.clone()],
        };
        if all.iter().any(lowers) {
            return Ok(());
        }
        all.insert(0, Lowercase.into());
        self.whole.take();
        let changed = self.inner.with_normalizer(Some(Sequence::new(all)));
        changed
            .map(drop)
            .map_err(|error| self.fail(error.to_string()))
    }

    /// From now on, adds no special tokens.
    pub(super) fn leave_out_special_tokens(&mut self) {
        self.whole.take();
        self.inner
            .with_post_processor(None::<tokenizers::PostProcessorWrapper>);
    }

    /// Tokenizes a text without special tokens or truncation.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    pub(super) fn encode_whole(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.whole().encode_fast(text, false);
        let encoded = encoded.map_err(|error| self.fail(error.to_string()))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Checks that the vocabulary fits a model with this number of token embeddings. (Added tokens may have higher ids: a
    /// text that contains them is refused.)
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary is larger.
    pub fn check_vocabulary(&self, n_words: usize) -> Result<()> {
        let n_tokens = self.inner.get_vocab_size(false);
        match n_tokens > n_words {
            true => Err(self.fail(format!(
                "has {n_tokens} tokens, but the model has {n_words} token embeddings: it belongs \
                 to another model; use the one that was published with the weights"
            ))),
            false => Ok(()),
        }
    }

    /// Tokenizes a text, with special tokens.
    ///
    /// # Errors
    /// The errors of [`Self::encode_all`].
    pub fn encode(&self, text: &str) -> Result<TokenizedText> {
        let encoded = self.encode_all([text])?.pop();
        Ok(encoded.unwrap_or_default())
    }

    /// Tokenizes a text that already contains its special tokens.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails; [`Error::Text`] if the text contains a place to be filled in.
    pub fn encode_written(&self, text: &str) -> Result<TokenizedText> {
        self.check_fillings([text])?;
        let encoded = self.inner.encode_fast(text, false);
        let encoded = encoded.map_err(|error| self.fail(error.to_string()))?;
        Ok(TokenizedText::from(&encoded))
    }

    /// Tokenizes many texts or pairs, in parallel.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails; [`Error::Text`] if a text cannot be truncated by the strategy in
    /// [`Self::truncate_by`], or contains a place to be filled in (Code Llama's `<FILL_ME>`).
    pub fn encode_all<'t, T>(
        &self,
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Vec<TokenizedText>>
    where
        T: Into<EncodeInput<'t>>,
    {
        let texts: Vec<EncodeInput> = texts.into_iter().map(Into::into).collect();
        self.check_fillings(texts.iter().filter_map(|text| match text {
            EncodeInput::Single(InputSequence::Raw(text)) => Some(text.as_ref()),
            _ => None,
        }))?;
        let own = |limit: &TokenLimit| {
            let own = texts.iter().enumerate();
            let own = own.filter(|(_, text)| !limit.strategy.is_the_library_s(text));
            own.map(|(index, text)| (index, text.clone())).collect()
        };
        let own: Vec<(usize, EncodeInput)> = self.limit.as_ref().map_or(Vec::new(), own);
        let encoded = self.inner.encode_batch_fast(texts, true);
        let encoded = encoded.map_err(|error| self.fail(error.to_string()))?;
        let mut encoded: Vec<TokenizedText> = encoded.iter().map(TokenizedText::from).collect();
        if let Some(limit) = &self.limit {
            for (index, text) in own {
                if encoded[index].ids.len() >= limit.max_length {
                    let cut = limit.encode(self.whole(), text);
                    let cut = cut.map_err(|reason| Error::Text { index, reason })?;
                    encoded[index] = TokenizedText::from(&cut);
                }
            }
        }
        Ok(encoded)
    }

    /// Refuses a text with Code Llama's fill-in token: transformers reorders such a text.
    fn check_fillings<'t>(&self, texts: impl IntoIterator<Item = &'t str>) -> Result<()> {
        let Some(token) = &self.fill_token else {
            return Ok(());
        };
        match texts
            .into_iter()
            .position(|text| text.contains(token.as_str()))
        {
            Some(index) => Err(Error::Text {
                index,
                reason: format!(
                    "contains {token}, a place to be filled in, which is not supported; write the \
                     tokens ▁<PRE>, ▁<SUF> and ▁<MID> instead"
                ),
            }),
            None => Ok(()),
        }
    }

    /// Returns the tokenizer without truncation.
    fn whole(&self) -> &tokenizers::Tokenizer {
        self.whole.get_or_init(|| {
            let mut whole = Box::new(self.inner.clone());
            let _ = whole.with_truncation(None); // this never fails
            whole
        })
    }

    /// Returns the text of tokens, without special ones.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let decoded = self.inner.decode(ids, true);
        let mut text = decoded.map_err(|error| self.fail(error.to_string()))?;
        if let Some(end) = &self.decoding.word_end {
            text = text.replace(end, " ").trim().to_string();
        }
        Ok(match self.decoding.cleans {
            true => cleaned(&text),
            false => text,
        })
    }

    /// Returns whether the tokens end with a run of bytes, which the next token may continue or invalidate.
    pub(super) fn ends_within_bytes(&self, ids: &[u32]) -> bool {
        let added = self.inner.get_added_vocabulary();
        let is_left_out = |token: &String| added.is_special_token(token);
        let mut tokens = ids
            .iter()
            .rev()
            .filter_map(|&id| self.inner.id_to_token(id));
        self.decoding.has_byte_fallback
            && tokens
                .find(|token| !is_left_out(token))
                .is_some_and(|token| {
                    let digits = token
                        .strip_prefix("<0x")
                        .and_then(|rest| rest.strip_suffix('>'));
                    digits.is_some_and(|digits| {
                        digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok()
                    })
                })
    }

    /// Returns whether spaces before punctuation are removed from texts.
    pub(super) fn cleans(&self) -> bool {
        self.decoding.cleans
    }

    /// Returns the length of the text that further tokens cannot change.
    pub(super) fn settled(&self, text: &str) -> usize {
        if !self.decoding.cleans {
            return text.len();
        }
        // A cleaned pattern begins with a space and has at most four characters.
        let from = text.char_indices().rev().nth(3).map_or(0, |(at, _)| at);
        let space = text[from..].find(' ').map(|at| from + at);
        space.map_or(text.len(), |at| text[..at].trim_end_matches(' ').len())
    }

    /// Returns whether a token is special, such as an end-of-text token.
    pub fn is_special(&self, id: u32) -> bool {
        let token = self.inner.id_to_token(id);
        token.is_some_and(|t| self.inner.get_added_vocabulary().is_special_token(&t))
    }

    /// Makes an error about this tokenizer.
    pub(super) fn fail(&self, reason: impl Into<String>) -> Error {
        failed(&self.path, reason)
    }
}

/// Returns the tokenizer with its vocabulary alone. Copies of a vocabulary take time.
fn without_added_tokens(inner: &tokenizers::Tokenizer) -> tokenizers::Tokenizer {
    let mut bare = tokenizers::Tokenizer::new(inner.get_model().clone());
    // It fails only of added tokens that the normalizer refuses, and there are none.
    let _ = bare.with_normalizer(inner.get_normalizer().cloned());
    bare.with_post_processor(inner.get_post_processor().cloned());
    bare.set_encode_special_tokens(inner.get_encode_special_tokens());
    bare
}

/// Refuses a file that stands for another in Git LFS.
pub(super) fn check_pointer(path: &Path, bytes: &[u8]) -> Result<()> {
    match bytes.starts_with(GIT_LFS) {
        true => Err(failed(
            path,
            "a Git LFS pointer, not the tokenizer itself; fetch it with `git lfs pull`, or download it again",
        )),
        false => Ok(()),
    }
}

fn failed(path: &Path, reason: impl Into<String>) -> Error {
    Error::Tokenizer {
        path: path.to_path_buf(),
        reason: reason.into(),
    }
}
