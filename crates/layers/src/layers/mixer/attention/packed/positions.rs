//! The scores by distance in packed attention.

use std::sync::Arc;

use candle_blocks_kernels::attention::{ContentOf, HeadRows, Heads, RelativeScores, RelativeTerm};
use candle_blocks_kernels::{Cpu, Slice, memory::lend, scratch};
use candle_core::{Result, bail};

use super::{Packing, mix::with_activated};
use crate::config::{Activation, AttentionConfig, Distances};
use crate::layers::packed::elements;
use crate::layers::{Attention, DistanceRows};
use crate::ops::{Content, Value};

scratch! {
    /// The gates of all queries on their biases.
    BIAS_GATES
}

/// The terms by distance. In evaluation their tables are constants.
#[derive(Clone)]
pub(super) struct PackedPositions {
    pub distances: Distances,
    terms: Vec<PackedTerm>,
}

#[derive(Clone)]
struct PackedTerm {
    content: PackedContent,
    /// `[n_rows, n_heads · width]`.
    table: Arc<[f32]>,
}

#[derive(Clone)]
enum PackedContent {
    Projected(ContentOf),
    /// A gate for each query and head, from two logits; the second has the factor of its head.
    Gate(Arc<[f32]>),
}

/// The projected rows that terms read.
#[derive(Clone, Copy)]
pub(super) struct ProjectedContents<'a> {
    pub queries: Heads<'a>,
    pub keys: Heads<'a>,
    /// `[n_rows, 2 · n_heads]`, if a bias is gated.
    pub logits: Heads<'a>,
    pub n_rows: usize,
}

impl PackedPositions {
    /// # Errors
    /// If the attention reads its stack's table by distance, and is packed without it.
    pub fn new(packing: &Packing, attention: &Attention) -> Result<Option<Self>> {
        let Some(distances) = attention.config().position.distances() else {
            return Ok(None);
        };
        let Some(table) = &packing.relative else {
            bail!("pack: attention reads the relative embeddings of its stack; pack the stack");
        };
        let terms = match &attention.bias_gate {
            Some(gate) => vec![PackedTerm {
                content: PackedContent::Gate(elements(&gate.factor().flatten_all()?)?.into()),
                table: elements(table)?.into(),
            }],
            None => {
                let terms = attention.disentangled_terms(&Value::of(table)?, false)?;
                let terms = terms.into_iter().map(|term| {
                    Ok(PackedTerm {
                        content: PackedContent::Projected(match term.content {
                            Content::Keys => ContentOf::Keys,
                            Content::Queries | Content::OfQueries(_) => ContentOf::Queries,
                        }),
                        table: elements(&term.table.tensor()?)?.into(),
                    })
                });
                terms.collect::<Result<_>>()?
            }
        };
        Ok(Some(Self { distances, terms }))
    }

    pub fn n_terms(&self) -> usize {
        self.terms.len()
    }

    /// Runs `work` with the terms.
    pub fn with<R>(
        &self,
        cpu: Cpu,
        rows: &DistanceRows,
        contents: ProjectedContents,
        attention: &AttentionConfig,
        work: impl FnOnce(RelativeScores) -> R,
    ) -> R {
        let n_heads = attention.n_heads;
        let is_gated = |term: &PackedTerm| matches!(term.content, PackedContent::Gate(_));
        let n_gates = match self.terms.iter().any(is_gated) {
            true => contents.n_rows * n_heads,
            false => 0,
        };
        lend(BIAS_GATES, n_gates, |gates: &mut [f32]| {
            for term in &self.terms {
                if let PackedContent::Gate(factors) = &term.content {
                    open_gates(cpu, contents.logits, factors, gates);
                }
            }
            let heads_of = |of, seq, head_dim| head_rows(of, [seq, n_heads, head_dim]);
            let terms = self.terms.iter().map(|PackedTerm { content, table }| {
                let (heads, of, width) = match content {
                    PackedContent::Projected(of) => {
                        let heads = match of {
                            ContentOf::Queries => contents.queries,
                            ContentOf::Keys => contents.keys,
                        };
                        (heads, *of, attention.head_dim)
                    }
                    PackedContent::Gate(_) => {
                        let heads = Heads {
                            data: &*gates,
                            row_stride: n_heads,
                            offset: 0,
                        };
                        (heads, ContentOf::Queries, 1)
                    }
                };
                let columns = n_heads * width;
                let table = Heads {
                    data: &table[rows.range.start * columns..rows.range.end * columns],
                    row_stride: columns,
                    offset: 0,
                };
                RelativeTerm {
                    content: heads_of(heads, contents.n_rows, width),
                    of,
                    table: heads_of(table, rows.range.len(), width),
                }
            });
            work(RelativeScores {
                terms: &terms.collect::<Vec<_>>(),
                rows: &rows.rows,
                scale: self.distances.scale(attention.scale),
            })
        })
    }
}

fn head_rows(of: Heads, [seq, heads, head_dim]: [usize; 3]) -> HeadRows {
    HeadRows {
        data: Slice::F32(of.data),
        seq,
        heads,
        head_dim,
        row_stride: of.row_stride,
        offset: of.offset,
    }
}

/// Computes `σ(a) · (σ(b) · factor - 1) + 2` for each row and head, where a row of `logits` has all heads' `a`, then their `b`.
fn open_gates(cpu: Cpu, logits: Heads, factors: &[f32], gates: &mut [f32]) {
    let n_heads = factors.len();
    let shape = [gates.len() / n_heads, 2 * n_heads];
    with_activated(cpu, Activation::Sigmoid, logits, shape, |shares| {
        let shares = shares.chunks_exact(2 * n_heads);
        for (gates, shares) in gates.chunks_exact_mut(n_heads).zip(shares) {
            let (a, b) = shares.split_at(n_heads);
            for (head, gate) in gates.iter_mut().enumerate() {
                *gate = a[head] * (b[head] * factors[head] - 1.0) + 2.0;
            }
        }
    });
}
