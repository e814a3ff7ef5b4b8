//! Ranks texts for a query.

use std::path::Path;

use candle_core::Tensor;

use crate::checkpoint::AppliedAdapter;
use crate::error::{Error, Result};
use crate::text::scoring::best_first;
use crate::text::{TextClassifier, TextEmbedder, TextOptions};

/// Ranks texts for a query: a cross-encoder by its scores, as sentence-transformers' `CrossEncoder.rank` does, and an embedding
/// model by its vectors' similarity, with the function that its files name.
///
/// ```no_run
/// use candle_blocks::text::TextRanker;
/// let ranker = TextRanker::open("ms-marco-MiniLM-L6-v2")?;
/// let documents = ["Berlin is known for its museums.", "Berlin has 3,520,031 inhabitants."];
/// for ranked in ranker.rank("How many people live in Berlin?", &documents)? {
///     println!("{} {}", ranked.score, documents[ranked.corpus_id]);
/// }
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextRanker {
    judge: Judge,
    query_prompt: Option<String>,
}

/// The model that scores.
#[derive(Clone, Debug)]
pub(in crate::text) enum Judge {
    /// A classifier of pairs with one label.
    Pairs(Box<TextClassifier>),
    Vectors(Box<TextEmbedder>),
}

/// A ranker's query. [`TextRanker::query`](crate::text::TextRanker::query) returns it.
#[derive(Clone, Debug)]
pub struct RankerQuery(QueryForm);

/// A query's part that is the same for all documents.
#[derive(Clone, Debug)]
enum QueryForm {
    Text(String),
    Vectors(Tensor),
}

/// A document's place in a ranking. [`TextRanker::rank`](crate::text::TextRanker::rank) returns it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RankedText {
    /// The document's index, from 0, in the order in which documents were given.
    pub corpus_id: usize,
    /// The score: the larger, the better.
    pub score: f32,
}

impl RankedText {
    /// Returns the ranking for all documents' scores, the highest first, and equal ones in their order.
    pub fn ranking(scores: &[f32]) -> Vec<Self> {
        let of = |corpus_id| Self {
            corpus_id,
            score: scores[corpus_id],
        };
        best_first(scores).into_iter().map(of).collect()
    }
}

impl TextRanker {
    /// Opens a cross-encoder or an embedding model, packed in f32 for inference on the CPU. [`TextOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`TextOptions::ranker`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().ranker(directory)
    }

    pub(in crate::text) fn new(judge: Judge) -> Self {
        Self {
            judge,
            query_prompt: None,
        }
    }

    /// Sets the text before a query, instead of the model's prompt for queries.
    #[must_use]
    pub fn with_query_prompt(mut self, prompt: &str) -> Self {
        self.query_prompt = Some(prompt.to_string());
        self
    }

    /// Returns the adapters that are merged into the model's weights.
    pub fn adapters(&self) -> &[AppliedAdapter] {
        match &self.judge {
            Judge::Pairs(classifier) => classifier.adapters(),
            Judge::Vectors(embedder) => embedder.adapters(),
        }
    }

    /// Returns notes on settings in the files that scores do not follow.
    pub fn notes(&self) -> &[String] {
        match &self.judge {
            Judge::Pairs(classifier) => classifier.notes(),
            Judge::Vectors(embedder) => embedder.notes(),
        }
    }

    /// Returns the prompt with this name, for [`Self::with_query_prompt`].
    ///
    /// # Errors
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) if the model has no prompt with this name.
    pub fn prompt(&self, name: &str) -> Result<&str> {
        match &self.judge {
            Judge::Pairs(classifier) => classifier.prompt(name),
            Judge::Vectors(embedder) => embedder.prompt(name),
        }
    }

    /// Returns the documents' ranking for a query, the best first.
    ///
    /// # Errors
    /// The errors of [`Self::scores`].
    pub fn rank<T: AsRef<str>>(&self, query: &str, documents: &[T]) -> Result<Vec<RankedText>> {
        Ok(RankedText::ranking(&self.scores(query, documents)?))
    }

    /// Returns the documents' scores for a query, in their order. A cross-encoder's default prompt precedes the
    /// query. An embedding model's prompts "query" and "document", or "passage" or "corpus", precede query and documents.
    ///
    /// # Errors
    /// [`Error::Text`](crate::Error::Text) if a document gives no token, or one that the model does not have;
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) if the query does.
    pub fn scores<T: AsRef<str>>(&self, query: &str, documents: &[T]) -> Result<Vec<f32>> {
        self.scores_of(&self.query(query)?, documents)
    }

    /// Returns a query for [`Self::scores_of`]. An embedding model computes its vector once.
    ///
    /// # Errors
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) if it gives no token, or one that the model does not have.
    pub fn query(&self, query: &str) -> Result<RankerQuery> {
        let prompt = self.query_prompt.as_deref();
        Ok(RankerQuery(match &self.judge {
            Judge::Vectors(embedder) => QueryForm::Vectors(embedder.of_query(query, prompt)?),
            Judge::Pairs(_) => QueryForm::Text(query.to_string()),
        }))
    }

    /// Returns the documents' scores for a query, like [`Self::scores`].
    ///
    /// # Errors
    /// The errors of [`Self::scores`]; also if another ranker made the query.
    pub fn scores_of<T: AsRef<str>>(
        &self,
        query: &RankerQuery,
        documents: &[T],
    ) -> Result<Vec<f32>> {
        match (&self.judge, &query.0) {
            (Judge::Vectors(embedder), QueryForm::Vectors(query)) => {
                embedder.scores(query, documents)
            }
            (Judge::Pairs(classifier), QueryForm::Text(query)) => {
                let documents = documents.iter();
                let pairs: Vec<_> = documents
                    .map(|text| (query.as_str(), text.as_ref()))
                    .collect();
                let scores = match self.query_prompt.as_deref() {
                    Some(prompt) => classifier.classify_pairs_prompted(&pairs, prompt)?,
                    None => classifier.classify_pairs(&pairs)?,
                };
                Ok(scores.iter().map(|scores| scores.scores[0]).collect())
            }
            _ => {
                let reason = "belongs to a ranker of another kind; make it with this one's `query`";
                Err(Error::input("query", reason))
            }
        }
    }
}
