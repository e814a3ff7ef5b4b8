//! Dynamic time warping: the cheapest monotonic path through a cost matrix.

/// Returns the cheapest path, as cells, from the first cell to the last in a matrix `[n_rows, n_columns]`. Each step goes to the
/// next row, the next column, or both. Sums are in f32, and equal sums and NaN prefer the next column, as in transformers'
/// `_dynamic_time_warping`. If costs are NaN, the path begins in column -1, also as there.
pub(super) fn path(costs: &[f64], n_rows: usize, n_columns: usize) -> Vec<(isize, isize)> {
    #[derive(Clone, Copy, PartialEq)]
    enum From {
        Both,
        Row,
        Column,
    }
    let width = n_columns + 1;
    let mut sums = vec![f32::INFINITY; (n_rows + 1) * width];
    let mut from = vec![From::Column; sums.len()];
    sums[0] = 0.0;
    for j in 1..=n_columns {
        for i in 1..=n_rows {
            let at = i * width + j;
            let (both, row, column) = (sums[at - width - 1], sums[at - width], sums[at - 1]);
            let (sum, step) = match () {
                () if both < row && both < column => (both, From::Both),
                () if row < both && row < column => (row, From::Row),
                () => (column, From::Column),
            };
            sums[at] = (costs[(i - 1) * n_columns + j - 1] + f64::from(sum)) as f32;
            from[at] = step;
        }
    }
    let (mut i, mut j) = (n_rows, n_columns);
    let mut cells = Vec::new();
    while i > 0 || j > 0 {
        cells.push((i as isize - 1, j as isize - 1));
        let step = match (i, j) {
            (0, _) => From::Column,
            (_, 0) => From::Row,
            _ => from[i * width + j],
        };
        match step {
            From::Both => (i, j) = (i - 1, j - 1),
            From::Row => i -= 1,
            From::Column => j -= 1,
        }
    }
    cells.reverse();
    cells
}
