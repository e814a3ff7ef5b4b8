//! Relative position scores in disentangled attention: products between contents and positions.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::attention::{ContentOf, HeadRows, RelativeScores};
use candle_core::{DType, Result, bail};

use super::backward::BackwardPass;
use super::engine::Engine;
use super::kernels::Data;
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
    seq: usize,
}

impl StepHeads {
    fn new(of: &Taped<Cpu>, seq: usize) -> Self {
        Self {
            data: of.data.clone(),
            slot: of.slot.clone(),
            seq,
        }
    }

    fn with<R>(&self, heads: usize, work: impl FnOnce(HeadRows) -> R) -> R {
        let reading = self.data.read();
        work(HeadRows {
            data: reading.slice(),
            seq: self.seq,
            heads,
            head_dim: self.slot.columns.len() / heads,
            row_stride: self.slot.width,
            offset: self.slot.columns.start,
        })
    }
}

/// The terms that an attention keeps rather than their scores, which each pass recomputes.
pub(super) struct RelativeTerms {
    terms: Vec<Term<StepHeads>>,
    batch: usize,
    n_heads: usize,
    seq: usize,
    rows: Vec<u32>,
    scale: f64,
    dtype: DType,
}

impl RelativeTerms {
    pub fn new(terms: &[Term<Taped<Cpu>>], relative: &Relative, mixing: &Mixing) -> Self {
        let term = |term: &Term<Taped<Cpu>>| Term {
            content: StepHeads::new(&term.content, mixing.queries),
            of: term.of,
            table: StepHeads::new(&term.table, term.table.rows()),
        };
        Self {
            terms: terms.iter().map(term).collect(),
            batch: mixing.batch,
            n_heads: mixing.n_heads,
            seq: mixing.queries,
            rows: relative.rows.to_vec(),
            scale: mixing.scale,
            dtype: terms.first().map_or(DType::F32, |term| term.table.dtype()),
        }
    }

    /// Returns the strides of the scores as a bias.
    pub fn strides(&self) -> [usize; 4] {
        let per_head = self.seq * self.seq;
        [self.n_heads * per_head, per_head, self.seq, 1]
    }

    /// Returns zeros `[batch, n_heads, seq, seq]`.
    pub fn zeros(&self) -> Result<Numbers> {
        Numbers::zeros(self.dtype, self.batch * self.strides()[0])
    }

    /// Computes the scores, `[batch, n_heads, seq, seq]`.
    pub fn scores(&self, cpu: Cpu) -> Result<Numbers> {
        let mut scores = self.zeros()?;
        for term in &self.terms {
            self.with(term, |term| term.add_to(cpu, scores.slice_mut()));
        }
        Ok(scores)
    }

    /// Adds the contents' and tables' gradients to the pass, given the scores' gradient.
    pub fn backward(&self, pass: &mut BackwardPass<Cpu>, dscores: &Numbers) -> Result<()> {
        for term in &self.terms {
            let numbers = |of: &StepHeads, n: usize| {
                Numbers::new(self.dtype, n * of.seq * of.slot.columns.len())
            };
            let mut dcontent = numbers(&term.content, self.batch)?;
            let mut dtable = numbers(&term.table, 1)?;
            let (content, table) = (dcontent.slice_mut(), dtable.slice_mut());
            let cpu = pass.engine;
            self.with(term, |term| {
                term.backward(cpu, dscores.slice(), content, table)
            });
            pass.add(&term.content.slot, dcontent)?;
            pass.add(&term.table.slot, dtable)?;
        }
        Ok(())
    }

    fn with<R>(&self, term: &Term<StepHeads>, work: impl FnOnce(&RelativeScores) -> R) -> R {
        term.content.with(self.n_heads, |content| {
            term.table.with(self.n_heads, |table| {
                work(&RelativeScores {
                    batch: self.batch,
                    content,
                    of: term.of,
                    table,
                    rows: &self.rows,
                    longest: content.seq,
                    scale: self.scale,
                })
            })
        })
    }
}
