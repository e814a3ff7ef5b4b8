//! What the distances of keys from queries add to scores: products of contents and positions.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::attention::{ContentOf, HeadRows, RelativeScores};
use candle_core::{DType, Result, bail};

use super::constants::Constants;
use super::kernels::Data;
use super::numbers::Numbers;
use super::tape::{Slot, Taped};
use super::value::{Value, on_either};

const OP: &str = "relative scores";

/// Of which positions the scores are, and what the products are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distances<'a> {
    /// Number of sequences.
    pub batch: usize,
    /// Positions of each.
    pub seq: usize,
    /// Heads of contents and of tables.
    pub n_heads: usize,
    /// The row of the tables for the distances `query - key` from `1 - seq` to `seq - 1`.
    pub rows: &'a [u32],
    /// Tells one such map from another.
    pub name: &'a str,
    /// Factor on the products.
    pub scale: f64,
    /// What all attentions of a pass have on a device in common.
    pub constants: &'a Constants,
}

/// A content and the table of positions that it meets.
pub(super) struct Term<V> {
    pub content: V,
    pub of: ContentOf,
    pub table: V,
}

impl Value {
    /// `scale · (q · keys[row]ᵀ + k · queries[row]ᵀ)` per head, for queries `self` and the row of their distance; of the
    /// tables `[rows, n_heads · head_dim]` one may be missing.
    ///
    /// # Shapes
    /// Queries and keys `[.., seq, n_heads · head_dim]`; the result is `[batch, n_heads, seq, seq]`.
    ///
    /// # Errors
    /// If shapes or types do not fit, or for half types: see [`Self::widened`].
    pub fn relative_scores(
        &self,
        key: &Value,
        (keys, queries): (Option<&Value>, Option<&Value>),
        distances: &Distances,
    ) -> Result<Value> {
        let to_position = keys.map(|table| (self, ContentOf::Queries, table));
        let to_content = queries.map(|table| (key, ContentOf::Keys, table));
        let terms: Vec<_> = to_position.into_iter().chain(to_content).collect();
        check(self, &terms, distances)?;
        on_either!(self, query => {
            let terms = terms.into_iter().map(|(content, of, table)| {
                Ok(Term { content: query.on_tape(content)?, of, table: query.on_tape(table)? })
            });
            Ok(query.relative_scores(terms.collect::<Result<_>>()?, distances)?.into())
        })
    }
}

/// # Errors
/// If shapes or types do not fit.
fn check(
    query: &Value,
    terms: &[(&Value, ContentOf, &Value)],
    distances: &Distances,
) -> Result<()> {
    let &Distances {
        batch,
        seq,
        n_heads,
        rows,
        ..
    } = distances;
    let (dtype, width) = (query.dtype(), query.width());
    let last = rows.iter().max().map_or(0, |&last| last as usize + 1);
    let n_rows = |of: &Value| of.dims().iter().product::<usize>() / of.width().max(1);
    let fits = |&(content, _, table): &(&Value, ContentOf, &Value)| {
        let alike = [content, table];
        let alike = alike.map(|of| of.dtype() == dtype && of.width() == width);
        alike == [true; 2] && n_rows(content) == batch * seq && n_rows(table) >= last
    };
    let is_wide = matches!(dtype, DType::F32 | DType::F64);
    if !(is_wide && n_heads > 0 && width.is_multiple_of(n_heads) && terms.iter().all(fits)) {
        let found = terms.iter().map(|(content, of, table)| {
            let (a, b) = (content.dims(), table.dims());
            format!("{of:?} {a:?} and a table {b:?}")
        });
        bail!(
            "{OP}: {}, expected f32 or f64 of one width, {n_heads} heads, {batch} sequences of {seq} and {last} rows of a table",
            found.collect::<Vec<_>>().join(", ")
        );
    }
    match rows.len() + 1 == 2 * seq || batch * seq == 0 {
        true => Ok(()),
        false => bail!("{OP}: rows for {} distances of {seq} positions", rows.len()),
    }
}

/// Rows of heads that a step reads.
struct Heads {
    data: Data,
    slot: Slot,
    seq: usize,
}

impl Heads {
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

/// What a step keeps of its [`Distances`].
struct Kept {
    terms: Vec<Term<Heads>>,
    batch: usize,
    n_heads: usize,
    rows: Vec<u32>,
    scale: f64,
}

impl Kept {
    fn with<R>(&self, term: &Term<Heads>, work: impl FnOnce(&RelativeScores) -> R) -> R {
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

impl Taped<Cpu> {
    fn relative_scores(&self, terms: Vec<Term<Self>>, distances: &Distances) -> Result<Self> {
        let &Distances {
            batch,
            seq,
            n_heads,
            ..
        } = distances;
        let term = |term: &Term<Self>| Term {
            content: Heads::new(&term.content, seq),
            of: term.of,
            table: Heads::new(&term.table, term.table.rows()),
        };
        let kept = Kept {
            terms: terms.iter().map(term).collect(),
            batch,
            n_heads,
            rows: distances.rows.to_vec(),
            scale: distances.scale,
        };
        let dims = vec![batch, n_heads, seq, seq];
        let mut scores = Numbers::zeros(self.dtype(), dims.iter().product())?;
        for term in &kept.terms {
            let cpu = self.engine();
            kept.with(term, |term| term.add_to(cpu, scores.slice_mut()));
        }
        let slots = |term: &Term<Self>| [term.content.slot.place, term.table.slot.place];
        let asks: Vec<Option<usize>> = terms.iter().flat_map(slots).collect();
        Ok(self.computed((scores, dims), &asks, move |pass, dy| {
            for term in &kept.terms {
                let numbers = |of: &Heads, n: usize| {
                    Numbers::new(dy.dtype(), n * of.seq * of.slot.columns.len())
                };
                let mut dcontent = numbers(&term.content, kept.batch)?;
                let mut dtable = numbers(&term.table, 1)?;
                let (content, table) = (dcontent.slice_mut(), dtable.slice_mut());
                let cpu = pass.engine;
                kept.with(term, |term| term.backward(cpu, dy.slice(), content, table));
                pass.add(&term.content.slot, dcontent)?;
                pass.add(&term.table.slot, dtable)?;
            }
            Ok(())
        }))
    }
}
