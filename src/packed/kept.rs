//! The rows of a batch without the padding around its sequences.

/// Which rows of a batch are computed.
pub(super) struct Kept {
    /// The first row of each sequence, and how many there are.
    pub starts: Vec<usize>,
    /// Where they are in the batch.
    pub rows: Vec<usize>,
}

impl Kept {
    /// From marks `[batch, seq]`, 1 = keep. `None` if there is no padding, or a sequence has a gap: without its rows
    /// distances across it would shrink.
    pub fn new(marks: &[u8], seq: usize) -> Option<Self> {
        let (mut starts, mut rows) = (vec![0], Vec::new());
        for (b, marks) in marks.chunks_exact(seq.max(1)).enumerate() {
            let first = marks.iter().position(|&mark| mark != 0).unwrap_or(seq);
            let end = marks
                .iter()
                .rposition(|&mark| mark != 0)
                .map_or(first, |last| last + 1);
            if marks[first..end].contains(&0) {
                return None;
            }
            rows.extend(b * seq + first..b * seq + end);
            starts.push(rows.len());
        }
        (rows.len() < marks.len()).then_some(Self { starts, rows })
    }
}
