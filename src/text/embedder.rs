//! Converts texts to vectors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;

use super::encoder::reading::TextInput;
use super::prompts::Prompts;
use super::scoring::Similarity;
use super::sentence_files::Roles;
use super::sentences::pipeline::Pipeline;
use super::{Pooling, TextOptions, TextRole};
use crate::checkpoint::AppliedAdapter;
use crate::error::{Error, Result, getters};
use crate::model::Model;

/// Computes vectors for texts, as sentence-transformers does.
///
/// A text's vector has the same bits alone and in any batch. Texts with different lengths are batched without computing
/// padding.
///
/// ```no_run
/// use candle_blocks::text::TextEmbedder;
/// let embedder = TextEmbedder::open("all-MiniLM-L6-v2")?;
/// let vectors = embedder.embed(&["A man is eating food.", "Someone is having a meal."])?; // [2, 384]
/// let similarity = vectors.matmul(&vectors.t()?)?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextEmbedder {
    /// The computations for different texts, at least one.
    pipelines: Vec<Pipeline>,
    /// The pipeline for each role.
    roles: Roles,
    similarity: Similarity,
    prompts: Prompts,
    notes: Vec<String>,
}

impl TextEmbedder {
    /// Opens a sentence-transformers directory, packed in f32 for inference on the CPU. [`TextOptions`] has more options,
    /// and poolings for a plain encoder.
    ///
    /// # Errors
    /// The errors of [`TextOptions::embedder`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().embedder(directory)
    }

    /// Makes an embedder from its parts, at least one pipeline.
    pub(super) fn new(
        pipelines: Vec<Pipeline>,
        roles: Roles,
        similarity: Similarity,
        prompts: Prompts,
        mut notes: Vec<String>,
    ) -> Self {
        for note in pipelines.iter().flat_map(Pipeline::notes) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        Self {
            pipelines,
            roles,
            similarity,
            prompts,
            notes,
        }
    }

    getters! {
        /// Returns the model's prompts, by name.
        prompts(&self) -> &BTreeMap<String, String> => &self.prompts.by_name;
        /// Returns notes on settings in the files that vectors do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    /// Returns the model; `None` for static embeddings, which have none. If queries and documents have separate models, it
    /// is the one for texts without a role.
    pub fn model(&self) -> Option<&Model> {
        self.main().model()
    }

    /// Returns the adapters that are merged into the model's weights.
    pub fn adapters(&self) -> &[AppliedAdapter] {
        self.main().adapters()
    }

    /// Returns the length of a vector.
    pub fn width(&self) -> usize {
        self.main().width()
    }

    /// Returns the length in tokens to which texts are truncated; `None` for no truncation.
    pub fn max_length(&self) -> Option<usize> {
        self.main().max_length()
    }

    /// Returns the poolings, whose results are concatenated; none if the model's own pooler computes the vector, or there is no
    /// model.
    pub fn pooling(&self) -> &[Pooling] {
        let pooling = self.main().pooling();
        pooling.map_or(&[], |pooling| &pooling.poolings)
    }

    /// Returns the pipeline for texts without a role, or the first.
    fn main(&self) -> &Pipeline {
        &self.pipelines[self.roles.unnamed.unwrap_or_default()]
    }

    /// Returns the pipeline for queries, documents, or texts without a role.
    fn pipeline(&self, role: Option<TextRole>) -> Result<&Pipeline> {
        let index = match role {
            None => self.roles.unnamed,
            Some(TextRole::Query) => self.roles.query,
            Some(TextRole::Document) => self.roles.document,
        };
        let missing = || {
            let reason = match role {
                None => "is missing: the model's Router has no default route; say whether texts are queries or documents \
                     (`TextEmbedder::embed_as`)".to_string(),
                Some(role) => format!("is {role}, for which the model's Router has no route"),
            };
            Error::input("task", reason)
        };
        index
            .map(|index| &self.pipelines[index])
            .ok_or_else(missing)
    }

    /// Returns a vector for each token in documents, `[n_tokens, width]` in f32 on the CPU, in their order: for a model such as
    /// ColBERT, or the pooling [`Pooling::EachToken`]. The model's prompt for documents, or its default prompt, precedes every
    /// text, and vectors for tokens that its files skip are left out.
    ///
    /// # Errors
    /// The errors of [`Self::embed`].
    pub fn token_vectors<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Tensor>> {
        self.vectors_of_tokens(TextRole::Document, texts)
    }

    /// Returns a vector for each token in queries, like [`Self::token_vectors`]. Short queries are filled with the tokens that
    /// the model's files name.
    ///
    /// # Errors
    /// The errors of [`Self::token_vectors`].
    pub fn query_token_vectors<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Tensor>> {
        self.vectors_of_tokens(TextRole::Query, texts)
    }

    fn vectors_of_tokens<T: AsRef<str>>(&self, role: TextRole, texts: &[T]) -> Result<Vec<Tensor>> {
        let has_roles = self.roles.query != self.roles.document;
        let prompt = match has_roles {
            true => self.prompt(role.name())?,
            false => self.prompts.default_prompt()?,
        };
        let texts = texts.iter().map(|text| TextInput::One(text.as_ref()));
        self.pipeline(Some(role))?
            .vectors_of_tokens(&texts.collect::<Vec<_>>(), prompt)
    }

    /// Returns the similarity of a query and a document by their tokens' vectors: for each of the query's, the largest dot
    /// product with one of the document's. For ColBERT it is the sum of these (MaxSim), for BGE-M3 their mean.
    ///
    /// # Errors
    /// If the vectors have different widths, or a text has none.
    pub fn max_sim(&self, query: &Tensor, document: &Tensor) -> Result<f32> {
        let largest = query.matmul(&document.t()?)?.max(1)?;
        let similarity = match self.similarity {
            Similarity::MaxSim => largest.sum_all()?,
            _ => largest.mean_all()?,
        };
        Ok(similarity.to_scalar()?)
    }

    /// Returns each query's similarity with each document, `[n_queries, n_documents]`, given their vectors. The function is
    /// the one that `similarity_fn_name` in the model's files names: the cosine, which is the default, the dot product, which
    /// vectors over the vocabulary have by default, or the negative Euclidean or Manhattan distance.
    ///
    /// # Errors
    /// If the vectors have different widths, or the model has a vector for each token.
    pub fn similarity(&self, queries: &Tensor, documents: &Tensor) -> Result<Tensor> {
        self.similarity.of_vectors(queries, documents)
    }

    /// Returns a query's vector, `[1, width]`, or its tokens' vectors.
    pub(super) fn of_query(&self, query: &str, prompt: Option<&str>) -> Result<Tensor> {
        // The index of an error is a document's.
        let of_query = |error| match error {
            Error::Text { reason, .. } => Error::input("query", reason),
            other => other,
        };
        if self.pooling() != [Pooling::EachToken] {
            let vector = self.embed_role(TextRole::Query, &[query], prompt);
            return vector.map_err(of_query);
        }
        if prompt.is_some() {
            let reason = "goes with no vector for each token, whose files name it; leave it out";
            return Err(Error::input("prompt", reason));
        }
        let vectors = self.query_token_vectors(&[query]).map_err(of_query)?;
        Ok(Tensor::cat(&vectors, 0)?)
    }

    /// Returns each document's similarity with a query, given its vectors by [`Self::of_query`].
    pub(super) fn scores<T: AsRef<str>>(
        &self,
        query: &Tensor,
        documents: &[T],
    ) -> Result<Vec<f32>> {
        if self.pooling() == [Pooling::EachToken] {
            let documents = self.token_vectors(documents)?;
            let documents = documents.iter();
            return documents
                .map(|document| self.max_sim(query, document))
                .collect();
        }
        let documents = self.embed_role(TextRole::Document, documents, None)?;
        let similarity = self.similarity(query, &documents)?;
        Ok(similarity.flatten_all()?.to_vec1()?)
    }

    /// Returns the tokens that a vector weighs, with their weights, the largest first: for a model whose vectors have one
    /// feature for each token of the vocabulary, such as SPLADE, and for [`Pooling::Lexical`]. `None` for other models.
    pub fn weighted_tokens(&self, vector: &[f32]) -> Option<Vec<(String, f32)>> {
        let tokenizer = self.main().vocabulary()?;
        let name = |id: usize| {
            let token = tokenizer.id_to_token(id as u32);
            token.unwrap_or_else(|| id.to_string())
        };
        let weights = vector.iter().copied().enumerate();
        let mut weights: Vec<_> = weights.filter(|(_, weight)| *weight != 0.0).collect();
        weights.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let named = weights.into_iter().map(|(id, weight)| (name(id), weight));
        Some(named.collect())
    }

    /// Returns the prompt with this name, for [`Self::embed_prompted`].
    ///
    /// # Errors
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) if the model has no prompt with this name.
    pub fn prompt(&self, name: &str) -> Result<&str> {
        self.prompts.named(name)
    }

    /// Returns vectors for texts, `[n, width]` in f32 on the CPU, in their order. If the model has a default prompt, it
    /// precedes every text.
    ///
    /// # Errors
    /// [`Error::Text`](crate::Error::Text) if a text gives no token, or one that the model does not have.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Tensor> {
        self.embed_prompted(texts, self.prompts.default_prompt()?)
    }

    /// Like [`Self::embed`], with `prompt` before every text instead of the default. For a model that uses a chat template,
    /// the prompt is the system message.
    ///
    /// # Errors
    /// The errors of [`Self::embed`].
    pub fn embed_prompted<T: AsRef<str>>(&self, texts: &[T], prompt: &str) -> Result<Tensor> {
        self.vectors(None, texts, prompt)
    }

    /// Returns vectors for queries or documents, like [`Self::embed`]: sentence-transformers' `encode_query` and
    /// `encode_document`. If the model has a prompt "query", it precedes queries; "document", or else "passage" or "corpus",
    /// precedes documents, and otherwise the default prompt. A `Router` reads both by separate models.
    ///
    /// # Errors
    /// The errors of [`Self::embed`]; also [`Error::InvalidInput`](crate::Error::InvalidInput) if a `Router` has no route for these
    /// texts.
    pub fn embed_as<T: AsRef<str>>(&self, role: TextRole, texts: &[T]) -> Result<Tensor> {
        self.embed_role(role, texts, None)
    }

    /// Like [`Self::embed_as`], with `prompt` before every text.
    ///
    /// # Errors
    /// The errors of [`Self::embed_as`].
    pub fn embed_as_prompted<T: AsRef<str>>(
        &self,
        role: TextRole,
        texts: &[T],
        prompt: &str,
    ) -> Result<Tensor> {
        self.embed_role(role, texts, Some(prompt))
    }

    fn embed_role<T: AsRef<str>>(
        &self,
        role: TextRole,
        texts: &[T],
        prompt: Option<&str>,
    ) -> Result<Tensor> {
        let names = role.prompt_names().iter();
        let mut known = names.filter_map(|name| self.prompt(name).ok());
        let prompt = match prompt.or_else(|| known.next()) {
            Some(prompt) => prompt,
            None => self.prompts.default_prompt()?,
        };
        self.vectors(Some(role), texts, prompt)
    }

    fn vectors<T: AsRef<str>>(
        &self,
        role: Option<TextRole>,
        texts: &[T],
        prompt: &str,
    ) -> Result<Tensor> {
        let texts = texts.iter().map(|text| TextInput::One(text.as_ref()));
        self.pipeline(role)?
            .vectors(&texts.collect::<Vec<_>>(), prompt)
    }
}
