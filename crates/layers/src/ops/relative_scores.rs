//! Relative position scores: products between contents and tables by distance.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::attention::{ContentOf, HeadRows, RelativeScores, RelativeTerm};
use candle_core::{DType, Result, bail};

use super::backward::BackwardPass;
use super::engine::Engine;
use super::kernels::{Data, Reading};
use super::mixing::{Content, Mixing, Relative, Term};
use super::numbers::Numbers;
use super::slot::Slot;
use super::tape::Taped;
use super::value::{Routed, Value};

const OP: &str = "relative scores";

/// A term's content with the positions that it belongs to.
pub(super) type PlacedTerm<V> = Term<(V, ContentOf), V>;

impl<'a> Relative<'a> {
    /// Checks shapes and types.
    ///
    /// # Errors
    /// If they do not match queries with this width and type.
    pub(super) fn check(&self, query: &Value, mixing: &Mixing) -> Result<()> {
        let (seq, rows) = (mixing.queries, self.rows);
        let last = rows.iter().max().map_or(0, |&last| last as usize + 1);
        let fits = |Term { content, table }: &Term<Content, Value>| {
            let width = match content {
                Content::Queries | Content::Keys => query.width(),
                Content::OfQueries(content) => content.width(),
            };
            let n_rows = table.dims().iter().product::<usize>() / table.width().max(1);
            table.dtype() == query.dtype() && table.width() == width && n_rows >= last
        };
        let is_of_itself = mixing.keys == seq && mixing.n_heads == mixing.n_kv_heads;
        let has_rows = rows.len() + 1 == 2 * seq || seq == 0;
        match is_of_itself && has_rows && self.terms.iter().all(fits) {
            true => Ok(()),
            false => {
                let tables = self.terms.iter().map(|term| term.table.dims());
                bail!(
                    "{OP}: tables {:?} and {} distances for {seq} queries of width {} and {} keys, expected {last} rows of the \
                     contents' width in {:?}, {seq} keys and as many heads",
                    tables.collect::<Vec<_>>(),
                    rows.len(),
                    query.width(),
                    mixing.keys,
                    query.dtype()
                )
            }
        }
    }

    /// Returns the terms for queries and keys on a tape.
    pub(super) fn terms<E: Routed>(
        &self,
        query: &Taped<E>,
        key: &Taped<E>,
    ) -> Result<Vec<PlacedTerm<Taped<E>>>> {
        let term = |Term { content, table }: &Term<Content, Value>| {
            let content = match content {
                Content::Queries => (query.clone(), ContentOf::Queries),
                Content::Keys => (key.clone(), ContentOf::Keys),
                Content::OfQueries(content) => (query.on_tape(content)?, ContentOf::Queries),
            };
            let table = query.on_tape(table)?;
            Ok(Term { content, table })
        };
        self.terms.iter().map(term).collect()
    }
}

impl<E: Engine> PlacedTerm<Taped<E>> {
    /// Returns the gradients' places.
    pub(super) fn asks(&self) -> [Option<usize>; 2] {
        [self.content.0.slot.place, self.table.slot.place]
    }
}

/// Rows with heads that a step reads.
struct StepHeads {
    data: Data,
    slot: Slot,
    rows: usize,
}

impl StepHeads {
    fn new(of: &Taped<Cpu>) -> Self {
        Self {
            data: of.data.clone(),
            slot: of.slot.clone(),
            rows: of.rows(),
        }
    }

    fn heads<'a>(&self, reading: &'a Reading, heads: usize) -> HeadRows<'a> {
        HeadRows {
            data: reading.slice(),
            seq: self.rows,
            heads,
            head_dim: self.slot.columns.len() / heads,
            row_stride: self.slot.width,
            offset: self.slot.columns.start,
        }
    }
}

/// The terms that an attention keeps for its passes.
pub(super) struct RelativeTerms {
    terms: Vec<PlacedTerm<StepHeads>>,
    n_heads: usize,
    rows: Vec<u32>,
    scale: f64,
}

impl RelativeTerms {
    pub fn new(terms: &[PlacedTerm<Taped<Cpu>>], relative: &Relative, n_heads: usize) -> Self {
        let term = |Term { content, table }: &PlacedTerm<Taped<Cpu>>| Term {
            content: (StepHeads::new(&content.0), content.1),
            table: StepHeads::new(table),
        };
        Self {
            terms: terms.iter().map(term).collect(),
            n_heads,
            rows: relative.rows.to_vec(),
            scale: relative.scale,
        }
    }

    pub fn with<R>(&self, work: impl FnOnce(RelativeScores) -> R) -> R {
        let readings = self
            .terms
            .iter()
            .map(|term| [&term.content.0, &term.table].map(|of| of.data.read()));
        let readings: Vec<_> = readings.collect();
        let terms = self.terms.iter().zip(&readings);
        let terms = terms.map(|(term, [content, table])| RelativeTerm {
            content: term.content.0.heads(content, self.n_heads),
            of: term.content.1,
            table: term.table.heads(table, self.n_heads),
        });
        work(RelativeScores {
            terms: &terms.collect::<Vec<_>>(),
            rows: &self.rows,
            scale: self.scale,
        })
    }

    /// Returns memory for the gradients of each term's content and table.
    pub fn gradients(&self, dtype: DType) -> Result<Vec<[Numbers; 2]>> {
        let gradients = |term: &PlacedTerm<StepHeads>| {
            let n = |of: &StepHeads| of.rows * of.slot.columns.len();
            Ok([
                Numbers::new(dtype, n(&term.content.0))?,
                Numbers::zeros(dtype, n(&term.table))?,
            ])
        };
        self.terms.iter().map(gradients).collect()
    }

    /// Adds the gradients of contents and tables to the pass.
    pub fn add(&self, pass: &mut BackwardPass<Cpu>, gradients: Vec<[Numbers; 2]>) -> Result<()> {
        for (term, [content, table]) in self.terms.iter().zip(gradients) {
            pass.add(&term.content.0.slot, content)?;
            pass.add(&term.table.slot, table)?;
        }
        Ok(())
    }
}
