//! A checkpoint's tokenizer.

pub(crate) mod added_tokens;
pub(crate) mod config;
pub(crate) mod pieces;
pub(crate) mod token_text;
pub mod token_types;
pub(crate) mod truncation;
pub(crate) mod windows;

pub(crate) mod decoding;
mod encoding;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokenizers::{AddedToken, Encoding, PaddingDirection, TruncationDirection};

use self::decoding::Decoding;
use crate::tokenizer::added_tokens::{Known, added_tokens};
use crate::tokenizer::config::{SPECIAL_TOKENS, is_left, unread};
use crate::tokenizer::truncation::TokenLimit;
use crate::tokenizer_class::git_lfs::check_pointer;
use crate::tokenizer_class::{Origin, PythonTokens, TokenizerClass};
use candle_blocks_base::{Error, Result, getters};
use candle_blocks_files::config_json::ConfigJson;
use candle_blocks_files::gguf::is_gguf;
use candle_blocks_files::gguf::vocabulary::GgufTokenizer;
use candle_blocks_files::python_json;
use candle_blocks_files::tensors::{TensorFiles, is_named, read_limited};

/// The size limit: ten times the largest published file (Gemma's).
#[doc(hidden)]
pub const MAX_BYTES: u64 = 400_000_000;

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
    /// The tokens between added ones, if the tokenizer's class is written in Python. `inner` then has the vocabulary, the added
    /// tokens and the special tokens around a text.
    python: Option<Arc<PythonTokens>>,
    path: PathBuf,
    /// The folder with additional files; a GGUF file contains everything.
    folder: Option<PathBuf>,
    config: Option<ConfigJson>,
    limit: Option<TokenLimit>,
    /// The tokenizer without truncation, once a text has needed it.
    whole: OnceLock<Box<tokenizers::Tokenizer>>,
    /// The tokenizer without truncation or a post-processor, once a text has windows.
    bare: OnceLock<Box<tokenizers::Tokenizer>>,
    sides: Sides,
    decoding: Decoding,
    /// A token that texts must not contain.
    fill_token: Option<String>,
    unread_keys: Vec<String>,
    named_tokens: BTreeMap<String, String>,
    note: Option<String>,
}

/// The part of a `tokenizer.json` that a class in Python reads.
#[derive(serde::Deserialize)]
struct AddedTokensInJson {
    #[serde(default)]
    added_tokens: Vec<NumberedToken>,
}

/// An added token with its id.
#[derive(serde::Deserialize)]
struct NumberedToken {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// The sides on which a tokenizer truncates and pads, if `tokenizer_config.json` does not set them.
#[derive(Clone, Copy, Debug)]
struct Sides {
    truncation: TruncationDirection,
    padding: PaddingDirection,
}

/// A text, or a pair of texts, as token ids. [`Tokenizer::encode`](Tokenizer::encode) returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenizedText {
    /// The ids, including special tokens.
    pub ids: Vec<u32>,
    /// Each token's type, which tells the two texts of a pair apart.
    pub types: Vec<u32>,
    /// The tokens to which the model attends; `None` for all.
    #[doc(hidden)]
    pub attended: Option<Range<usize>>,
}

impl From<&Encoding> for TokenizedText {
    fn from(encoding: &Encoding) -> Self {
        Self {
            ids: encoding.get_ids().to_vec(),
            types: encoding.get_type_ids().to_vec(),
            attended: None,
        }
    }
}

/// A checkpoint whose tokenizer [`Tokenizer::of`] opens.
pub trait HasTokenizer {
    /// Returns the tokenizer in a GGUF file, unless a `tokenizer.json` beside it takes precedence.
    #[doc(hidden)]
    fn own_tokenizer(&self) -> Result<Option<GgufTokenizer>>;

    /// Returns the folder of the files.
    #[doc(hidden)]
    fn directory(&self) -> &Path;
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
            && let Some(gguf) = GgufTokenizer::read(&TensorFiles::open(directory)?)?
        {
            return Self::from_gguf(gguf);
        }
        let path = directory.join("tokenizer.json");
        let config = ConfigJson::open_named(&directory.join("tokenizer_config.json"))?;
        if !is_named(&path) || TokenizerClass::passes_over_json(directory, config.as_ref())? {
            return Self::of_class_files(directory, path, config);
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
        let truncation = inner.get_truncation().map(|params| params.direction);
        let padding = inner.get_padding().map(|params| params.direction);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(malformed)?;
        let class = TokenizerClass::of(directory, config.as_ref(), &inner)?;
        let origin = Origin::TokenizerJson;
        let mut opened = Self::assembled(directory, path, (inner, None), config, class, origin)?;
        opened.sides = Sides {
            truncation: truncation.unwrap_or(opened.sides.truncation),
            padding: padding.unwrap_or(opened.sides.padding),
        };
        Ok(opened)
    }

    /// Makes the tokenizer of a folder from the files that its class reads, without a `tokenizer.json`.
    fn of_class_files(directory: &Path, path: PathBuf, config: Option<ConfigJson>) -> Result<Self> {
        let Some((mut class, file)) = TokenizerClass::with_files(directory, config.as_ref())?
        else {
            let reason = TokenizerClass::missing(directory, config.as_ref())?;
            return Err(failed(&path, reason));
        };
        // transformers takes the added tokens of a tokenizer.json also for a class that reads nothing else of it.
        let known = match config
            .as_ref()
            .is_some_and(|config| config.value_at("added_tokens_decoder").is_some())
        {
            true => Known::default(),
            false => added_in_json(&path)?,
        };
        let mut tokens = added_tokens(directory, config.as_ref(), &class, &known)?;
        let known = known
            .into_iter()
            .map(|(text, (id, token))| ((id, text), token));
        let (listed, added): (Vec<_>, Vec<_>) = known.unzip();
        tokens.listed.extend(listed);
        let mut made = class.read_files(&file, &tokens)?;
        let added = made.0.add_tokens(added);
        added.map_err(|error| failed(&path, format!("its added tokens do not fit: {error}")))?;
        let (path, origin) = (file.path, Origin::ClassFiles);
        Self::assembled(directory, path, made, config, class, origin)
    }

    /// Adds to a model's vocabulary what its class and the files beside it say.
    fn assembled(
        directory: &Path,
        path: PathBuf,
        (mut inner, python): (tokenizers::Tokenizer, Option<PythonTokens>),
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
            note: class.note().map(str::to_string),
            named_tokens: tokens.named,
            sides: Sides {
                truncation: TruncationDirection::Right,
                padding: class.padding_side(),
            },
            inner,
            python: python.map(Arc::new),
            config,
            folder: Some(directory.to_path_buf()),
            path,
            limit: None,
            whole: OnceLock::new(),
            bare: OnceLock::new(),
        })
    }

    /// Opens a checkpoint's tokenizer: the one in a GGUF file, or else the `tokenizer.json` beside the weights.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn of(checkpoint: &impl HasTokenizer) -> Result<Self> {
        match checkpoint.own_tokenizer()? {
            Some(gguf) => Self::from_gguf(gguf),
            None => Self::open(checkpoint.directory()),
        }
    }

    fn from_gguf(gguf: GgufTokenizer) -> Result<Self> {
        let inner = crate::gguf::tokenizer(&gguf)?;
        let config = ConfigJson::given(&gguf.path, gguf.tokenizer_config());
        let named = SPECIAL_TOKENS.iter().filter_map(|name| {
            let token = config.special_token(name).ok()??;
            Some((name.to_string(), token))
        });
        Ok(Self {
            named_tokens: named.collect(),
            decoding: Decoding::of(&inner, None, None)?,
            fill_token: None,
            unread_keys: Vec::new(),
            note: crate::gguf::note(&gguf),
            sides: Sides {
                truncation: TruncationDirection::Right,
                padding: PaddingDirection::Right,
            },
            inner,
            python: None,
            config: Some(config),
            folder: None,
            path: gguf.path,
            limit: None,
            whole: OnceLock::new(),
            bare: OnceLock::new(),
        })
    }

    getters! {
        /// Returns the path of `tokenizer.json`, of the vocabulary in its place, or of the GGUF file.
        path(&self) -> &Path => &self.path;
        /// Returns the `tokenizer_config.json`, if there is one, or a GGUF file's equivalent.
        config(&self) -> Option<&ConfigJson> => self.config.as_ref();
        /// Returns the tokenizer from the `tokenizers` library. For a class that is written in Python, such as `ByT5Tokenizer`, it
        /// has the vocabulary and the added tokens; [`Self::encode`] and [`Self::decode`] also split and join texts.
        inner(&self) -> &tokenizers::Tokenizer => &self.inner;
    }

    /// Returns the keys in `tokenizer_config.json` that nothing reads and that are not known to change nothing.
    pub fn unread_keys(&self) -> &[String] {
        &self.unread_keys
    }

    /// Returns notes on [`Self::unread_keys`], on a class in transformers that may produce other tokens, and on a GGUF file that does not
    /// name its pre-tokenizer.
    pub fn notes(&self) -> Vec<String> {
        let keys = self.unread_keys.join(", ");
        let keys = (!keys.is_empty())
            .then(|| format!("tokenizer_config.json has keys that nothing reads here: {keys}"));
        self.note.iter().cloned().chain(keys).collect()
    }

    /// Returns the folder with files beside `tokenizer.json`; `None` if there is none.
    #[doc(hidden)]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the special tokens by name, such as `bos_token`, which chat templates read.
    #[doc(hidden)]
    pub fn named_tokens(&self) -> &BTreeMap<String, String> {
        &self.named_tokens
    }

    /// Returns the id of the special token with this name, if there is one.
    #[doc(hidden)]
    pub fn named_id(&self, name: &str) -> Option<u32> {
        let token = self.named_tokens.get(name)?;
        self.inner.token_to_id(token)
    }

    /// Returns a token as the vocabulary has it.
    #[doc(hidden)]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Returns whether [`Self::encodings`] gives offsets: all classes but those that are written in Python.
    #[doc(hidden)]
    pub fn has_offsets(&self) -> bool {
        self.python.is_none()
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

    /// Returns the side on which transformers pads texts. `tokenizer_config.json` names it, or else `tokenizer.json`, or else the
    /// tokenizer class has a default.
    ///
    /// # Errors
    /// If the file names another side.
    #[doc(hidden)]
    pub fn padding_side(&self) -> Result<PaddingDirection> {
        let config = self.config.as_ref();
        let said = config.map(|config| is_left(config, "padding_side"));
        Ok(match said.transpose()?.flatten() {
            Some(true) => PaddingDirection::Left,
            Some(false) => PaddingDirection::Right,
            None => self.sides.padding,
        })
    }

    /// Checks that the vocabulary fits a model with this number of token embeddings. (Added tokens may have higher ids: a
    /// text that contains them is refused.)
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary is larger.
    pub fn check_vocabulary(&self, n_embeddings: usize) -> Result<()> {
        let n_tokens = match self.python {
            None => self.inner.get_vocab_size(false),
            // Its vocabulary has the added tokens too.
            Some(_) => {
                let added = self.inner.get_added_tokens_decoder();
                let ids = self.inner.get_vocab(false).into_values();
                ids.filter(|id| !added.contains_key(id)).count()
            }
        };
        match n_tokens > n_embeddings {
            true => Err(self.fail(format!(
                "has {n_tokens} tokens, but the model has {n_embeddings} token embeddings: it belongs \
                 to another model; use the one that was published with the weights"
            ))),
            false => Ok(()),
        }
    }

    /// Makes an error about this tokenizer.
    #[doc(hidden)]
    pub fn fail(&self, reason: impl Into<String>) -> Error {
        failed(&self.path, reason)
    }
}

/// Returns the added tokens of a `tokenizer.json`, if there is one.
fn added_in_json(path: &Path) -> Result<Known> {
    if !is_named(path) {
        return Ok(Known::default());
    }
    let bytes = read_limited(path, MAX_BYTES, "tokenizer.json")?;
    check_pointer(path, &bytes)?;
    let read: serde_json::Result<AddedTokensInJson> = serde_json::from_slice(&bytes);
    let malformed = |error| failed(path, format!("not a tokenizer: {error}; download it again"));
    let all = read.map_err(malformed)?.added_tokens.into_iter();
    let known = all.map(|NumberedToken { id, token }| (token.content.clone(), (id.into(), token)));
    Ok(known.collect())
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

fn failed(path: &Path, reason: impl Into<String>) -> Error {
    Error::Tokenizer {
        path: path.to_path_buf(),
        reason: reason.into(),
    }
}
