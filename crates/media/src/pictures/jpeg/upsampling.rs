//! Components in the image's size: libjpeg's `jdsample.c`, with triangle filters where it has them.

use super::frame::{Component, Frame};

/// Checks that a component can be brought to the image's size.
///
/// # Errors
/// If the sampling factors do not divide the largest ones.
pub fn check(frame: &Frame, component: &Component) -> Result<(), String> {
    let divides = |axis: usize| frame.most[axis].is_multiple_of(component.sampling[axis]);
    match divides(0) && divides(1) {
        true => Ok(()),
        false => Err(
            "has sampling factors that do not divide the largest ones, which is not supported"
                .into(),
        ),
    }
}

/// Writes a component's samples for row `y` in the image's size to `line`, from rows with whole blocks.
pub fn row(frame: &Frame, component: &Component, plane: &[u8], y: usize, line: &mut Vec<u8>) {
    let [across, down] = [0, 1].map(|axis| frame.most[axis] / component.sampling[axis]);
    let stride = 8 * component.blocks[0];
    let row = |y: usize| &plane[stride * y..][..component.width];
    let (last, is_wide) = (component.height - 1, component.width > 2);
    let near = y / down;
    // The row on the other side of the border between samples.
    let far = match y % 2 {
        0 => near.saturating_sub(1),
        _ => (near + 1).min(last),
    };
    line.clear();
    match (across, down) {
        (1, 1) => line.extend_from_slice(row(near)),
        (2, 1) if is_wide => {
            let values = row(near).iter().map(|&x| i32::from(x));
            twice(&values.collect::<Vec<_>>(), [1, 2], 2, line);
        }
        (2, 2) if is_wide => {
            let pairs = row(near).iter().zip(row(far));
            let sums = pairs.map(|(&near, &far)| 3 * i32::from(near) + i32::from(far));
            twice(&sums.collect::<Vec<_>>(), [8, 7], 4, line);
        }
        (1, 2) => {
            let bias = 1 + (y % 2) as i32;
            let pairs = row(near).iter().zip(row(far));
            line.extend(
                pairs.map(|(&near, &far)| {
                    ((3 * i32::from(near) + i32::from(far) + bias) >> 2) as u8
                }),
            );
        }
        _ => line.extend(
            row(near)
                .iter()
                .flat_map(|&x| std::iter::repeat_n(x, across)),
        ),
    }
    line.truncate(frame.width);
}

/// Doubles a row: each result is three parts the nearest value and one the next nearest.
fn twice(values: &[i32], [left, right]: [i32; 2], shift: u32, line: &mut Vec<u8>) {
    let (first, last) = (values[0], values[values.len() - 1]);
    let mixed = |value: i32, other: i32, bias: i32| ((3 * value + other + bias) >> shift) as u8;
    line.resize(2 * values.len(), 0);
    line[0] = mixed(first, first, left);
    let pairs = line[1..].as_chunks_mut::<2>().0.iter_mut();
    for (pair, of) in pairs.zip(values.windows(2)) {
        *pair = [mixed(of[0], of[1], right), mixed(of[1], of[0], left)];
    }
    line[2 * values.len() - 1] = mixed(last, last, right);
}
