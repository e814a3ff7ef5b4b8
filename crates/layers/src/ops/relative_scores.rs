//! Relative position scores in disentangled attention: products between contents and positions.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::attention::{ContentOf, HeadRows, RelativeScores, RelativeTerm};
use candle_core::{DType, Result, bail};

use super::backward::BackwardPass;
use super::engine::Engine;
use super::kernels::{Data, Reading};
use super::mixing::{Mixing, Relative};
use super::numbers::Numbers;
use super::slot::Slot;
use super::tape::Taped;
use super::value::{Routed, Value};

const OP: &str = "relative scores";

/// A content, and the position table that it is multiplied by.
pub(super) struct Term<V> {
    pub content: V,
    pub of: ContentOf,
    pub table: V,
}

impl<'a> Relative<'a> {
    /// Checks shapes and types.
    ///
    /// # Errors
    /// If they do not match queries with this width and type.
    pub(super) fn check(&self, query: &Value, mixing: &Mixing) -> Result<()> {
        let (seq, rows) = (mixing.queries, self.rows);
        let last = rows.iter().max().map_or(0, |&last| last as usize + 1);
        let fits = |table: &&Value| {
            let n_rows = table.dims().iter().product::<usize>() / table.width().max(1);
            table.dtype() == query.dtype() && table.width() == query.width() && n_rows >= last
        };
        let mut tables = self.keys.into_iter().chain(self.queries);
        let is_of_itself = mixing.keys == seq && mixing.n_heads == mixing.n_kv_heads;
        let has_rows = rows.len() + 1 == 2 * seq || seq == 0;
        match is_of_itself && has_rows && tables.all(|table| fits(&table)) {
            true => Ok(()),
            false => bail!(
                "{OP}: tables {:?} and {} distances for {seq} queries of width {} and {} keys, expected {last} rows of that \
                 width in {:?}, {seq} keys and as many heads",
                [self.keys, self.queries].map(|table| table.map(|table| table.dims().to_vec())),
                rows.len(),
                query.width(),
                mixing.keys,
                query.dtype()
            ),
        }
    }

    /// Returns the terms for queries and keys on a tape.
    pub(super) fn terms<E: Routed>(
        &self,
        query: &Taped<E>,
        key: &Taped<E>,
    ) -> Result<Vec<Term<Taped<E>>>> {
        let to_position = self.keys.map(|table| (query, ContentOf::Queries, table));
        let to_content = self.queries.map(|table| (key, ContentOf::Keys, table));
        let term = |(content, of, table): (&Taped<E>, ContentOf, &Value)| {
            Ok(Term {
                content: content.clone(),
                of,
                table: query.on_tape(table)?,
            })
        };
        to_position
            .into_iter()
            .chain(to_content)
            .map(term)
            .collect()
    }
}

impl<E: Engine> Term<Taped<E>> {
    /// Returns the gradients' places.
    pub(super) fn asks(&self) -> [Option<usize>; 2] {
        [self.content.slot.place, self.table.slot.place]
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
    terms: Vec<Term<StepHeads>>,
    n_heads: usize,
    rows: Vec<u32>,
    scale: f64,
}

impl RelativeTerms {
    pub fn new(terms: &[Term<Taped<Cpu>>], relative: &Relative, mixing: &Mixing) -> Self {
        let term = |term: &Term<Taped<Cpu>>| Term {
            content: StepHeads::new(&term.content),
            of: term.of,
            table: StepHeads::new(&term.table),
        };
        Self {
            terms: terms.iter().map(term).collect(),
            n_heads: mixing.n_heads,
            rows: relative.rows.to_vec(),
            scale: mixing.scale,
        }
    }

    pub fn with<R>(&self, work: impl FnOnce(RelativeScores) -> R) -> R {
        let readings = self
            .terms
            .iter()
            .map(|term| [&term.content, &term.table].map(|of| of.data.read()));
        let readings: Vec<_> = readings.collect();
        let terms = self.terms.iter().zip(&readings);
        let terms = terms.map(|(term, [content, table])| RelativeTerm {
            content: term.content.heads(content, self.n_heads),
            of: term.of,
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
        let gradients = |term: &Term<StepHeads>| {
            let n = |of: &StepHeads| of.rows * of.slot.columns.len();
            Ok([
                Numbers::new(dtype, n(&term.content))?,
                Numbers::zeros(dtype, n(&term.table))?,
            ])
        };
        self.terms.iter().map(gradients).collect()
    }

    /// Adds the gradients of contents and tables to the pass.
    pub fn add(&self, pass: &mut BackwardPass<Cpu>, gradients: Vec<[Numbers; 2]>) -> Result<()> {
        for (term, [content, table]) in self.terms.iter().zip(gradients) {
            pass.add(&term.content.slot, content)?;
            pass.add(&term.table.slot, table)?;
        }
        Ok(())
    }
}
