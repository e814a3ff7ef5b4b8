//! Converts texts to vectors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;

use super::encoder::reading::TextInput;
use super::prompts::Prompts;
use super::scoring::Similarity;
use super::sentences::Sentences;
use super::{Pooling, TextOptions};
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
    sentences: Sentences,
    /// Set if queries are read in another way than documents, which `sentences` reads.
    queries: Option<Sentences>,
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

    /// Makes an embedder from its parts.
    pub(super) fn new(
        sentences: Sentences,
        similarity: Similarity,
        prompts: Prompts,
        mut notes: Vec<String>,
    ) -> Self {
        notes.extend(sentences.encoder.notes());
        Self {
            sentences,
            queries: None,
            similarity,
            prompts,
            notes,
        }
    }

    /// Makes an embedder with a vector for each token from the pipelines of queries and documents.
    pub(super) fn each_token(
        [queries, documents]: [Sentences; 2],
        similarity: Similarity,
        prompts: Prompts,
        notes: Vec<String>,
    ) -> Self {
        Self {
            queries: Some(queries),
            ..Self::new(documents, similarity, prompts, notes)
        }
    }

    getters! {
        /// Returns the model.
        model(&self) -> &Model => &self.sentences.encoder.model;
        /// Returns the adapters that are merged into its weights.
        adapters(&self) -> &[AppliedAdapter] => &self.sentences.encoder.adapters;
        /// Returns the length of a vector.
        width(&self) -> usize => self.sentences.width();
        /// Returns the number of tokens to which texts are truncated; `None` for no truncation.
        max_length(&self) -> Option<usize> => self.sentences.encoder.max_length();
        /// Returns the model's prompts, by name.
        prompts(&self) -> &BTreeMap<String, String> => &self.prompts.by_name;
        /// Returns notes on settings in the files that vectors do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    /// Returns the poolings, whose results are concatenated; none if the model's own pooler computes the vector.
    pub fn pooling(&self) -> &[Pooling] {
        let pooling = self.sentences.pooling();
        pooling.map_or(&[], |pooling| &pooling.poolings)
    }

    /// Returns a vector for each token of documents, `[n_tokens, width]` in f32 on the CPU, in their order: for a model such as
    /// ColBERT, or the pooling [`Pooling::EachToken`]. The model's prompt for documents, or its default prompt, precedes every
    /// text, and vectors of tokens that its files skip are left out.
    ///
    /// # Errors
    /// The errors of [`Self::embed`].
    pub fn token_vectors<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Tensor>> {
        self.vectors_of_tokens(&self.sentences, texts, "document")
    }

    /// Returns a vector for each token of queries, like [`Self::token_vectors`]. Short queries are filled with the tokens that
    /// the model's files name.
    ///
    /// # Errors
    /// The errors of [`Self::token_vectors`].
    pub fn query_token_vectors<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Tensor>> {
        let queries = self.queries.as_ref().unwrap_or(&self.sentences);
        self.vectors_of_tokens(queries, texts, "query")
    }

    fn vectors_of_tokens<T: AsRef<str>>(
        &self,
        sentences: &Sentences,
        texts: &[T],
        role: &str,
    ) -> Result<Vec<Tensor>> {
        let prompt = match &self.queries {
            Some(_) => self.prompt(role)?,
            None => self.prompts.default_prompt()?,
        };
        let texts = texts.iter().map(|text| TextInput::One(text.as_ref()));
        sentences.vectors_of_tokens(&texts.collect::<Vec<_>>(), prompt)
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

    /// Returns a query's similarity with each document, as [`TextRanker`](crate::text::TextRanker) says.
    pub(super) fn scores<T: AsRef<str>>(
        &self,
        query: &str,
        prompt: Option<&str>,
        documents: &[T],
    ) -> Result<Vec<f32>> {
        // The index of an error is a document's.
        let of_query = |error| match error {
            Error::Text { reason, .. } => Error::input("query", reason),
            other => other,
        };
        if self.pooling() == [Pooling::EachToken] {
            if prompt.is_some() {
                let reason =
                    "goes with no vector for each token, whose files name it; leave it out";
                return Err(Error::input("prompt", reason));
            }
            let query = self.query_token_vectors(&[query]).map_err(of_query)?;
            let documents = self.token_vectors(documents)?;
            return documents
                .iter()
                .map(|document| self.max_sim(&query[0], document))
                .collect();
        }
        let of_role = |names: &[&str]| {
            let mut known = names.iter().filter_map(|&name| self.prompt(name).ok());
            known
                .next()
                .map_or_else(|| self.prompts.default_prompt(), Ok)
        };
        let prompt = prompt.map_or_else(|| of_role(&["query"]), Ok)?;
        let query = self.embed_prompted(&[query], prompt).map_err(of_query)?;
        // As `encode_document` looks for them.
        let prompt = of_role(&["document", "passage", "corpus"])?;
        let documents = self.embed_prompted(documents, prompt)?;
        let similarity = self.similarity(&query, &documents)?;
        Ok(similarity.flatten_all()?.to_vec1()?)
    }

    /// Returns the tokens that a vector weighs, with their weights, the largest first: for a model whose vectors have one
    /// feature for each token of the vocabulary, such as SPLADE, and for [`Pooling::Lexical`]. `None` for other models.
    pub fn weighted_tokens(&self, vector: &[f32]) -> Option<Vec<(String, f32)>> {
        let tokenizer = &self.sentences.encoder.tokenizer;
        let name = |id: usize| {
            let token = tokenizer.inner().id_to_token(id as u32);
            token.unwrap_or_else(|| id.to_string())
        };
        self.sentences.is_over_vocabulary().then(|| {
            let weights = vector.iter().copied().enumerate();
            let mut weights: Vec<_> = weights.filter(|(_, weight)| *weight != 0.0).collect();
            weights.sort_by(|(_, a), (_, b)| b.total_cmp(a));
            let named = weights.into_iter().map(|(id, weight)| (name(id), weight));
            named.collect()
        })
    }

    /// Returns the prompt with this name, for [`Self::embed_prompted`].
    ///
    /// # Errors
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) if the model has no prompt with this name.
    pub fn prompt(&self, name: &str) -> Result<&str> {
        self.prompts.named(name)
    }

    /// Returns the vectors of texts, `[n, width]` in f32 on the CPU, in their order. If the model has a default prompt, it
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
        let texts = texts.iter().map(|text| TextInput::One(text.as_ref()));
        self.sentences.vectors(&texts.collect::<Vec<_>>(), prompt)
    }
}
