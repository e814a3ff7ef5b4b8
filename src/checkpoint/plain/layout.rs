//! Infers the orientation of a plain file's weights from shapes and names.

use crate::checkpoint::plain::PlainFile;
use crate::checkpoint::plain::names::FoundNorm;
use crate::checkpoint::scheme::Orientation;
use crate::error::{Error, Result};

/// The width of a norm with a known place.
#[derive(Clone, Copy)]
pub(super) struct NormWidth {
    /// The number of linear layers before the norm.
    pub place: usize,
    pub width: usize,
}

impl PlainFile {
    /// Returns the weights' orientation, given a norm whose width must fit.
    ///
    /// # Errors
    /// The errors of [`Self::orientation`].
    pub(super) fn orientation_with(&self, norm: Option<NormWidth>) -> Result<Orientation> {
        if let Some(orientation) = self.orientation {
            return self.check(orientation, norm).map(|()| orientation);
        }
        let both = [Orientation::OutIn, Orientation::InOut];
        match both.map(|orientation| self.check(orientation, norm)) {
            [Ok(()), Err(_)] => Ok(Orientation::OutIn),
            [Err(_), Ok(())] => Ok(Orientation::InOut),
            [Err(error), Err(_)] => Err(error),
            [Ok(()), Ok(())] => {
                let Some(layer) = self.contents.layers.first() else {
                    return Ok(Orientation::OutIn);
                };
                if let Some(orientation) = self.contents.named_orientation {
                    return Ok(orientation);
                }
                Err(Error::AmbiguousOrientation {
                    path: self.files.path().to_path_buf(),
                    shape: self.shape(&layer.weight)?,
                    tensor: layer.weight.clone(),
                })
            }
        }
    }

    /// Returns the width of the norm, if its number says where it is.
    pub(super) fn numbered_norm(&self) -> Result<Option<NormWidth>> {
        let norm = self.contents.norm.as_ref();
        let placed = norm.and_then(|norm| Some((norm, norm.place?)));
        let width = placed.map(|(norm, place)| {
            let width = self.norm_width(norm)?;
            Ok(NormWidth { place, width })
        });
        width.transpose()
    }

    /// Returns the number of elements of a norm's weight, or its last dimension if it is no vector.
    pub(super) fn norm_width(&self, norm: &FoundNorm) -> Result<usize> {
        let shape = self.shape(&norm.parameters.weight)?;
        Ok(vector(&shape).or(shape.last().copied()).unwrap_or(1))
    }

    /// Checks that all shapes fit this orientation: each bias its weight, each layer the next, and the norm the layers
    /// beside it.
    fn check(&self, orientation: Orientation, norm: Option<NormWidth>) -> Result<()> {
        let mut widths = Vec::new(); // before, between and after the layers
        for layer in &self.contents.layers {
            let shape = self.shape(&layer.weight)?;
            let [rows, columns] = shape[..] else {
                let weight = &layer.weight;
                let reason = format!("tensor {weight} has shape {shape:?}, expected a matrix");
                return Err(self.error(reason));
            };
            let (d_out, d_in) = match orientation {
                Orientation::OutIn => (rows, columns),
                Orientation::InOut => (columns, rows),
            };
            match widths.last() {
                None => widths.push(d_in),
                Some(&width) if width != d_in => {
                    let expected = match orientation {
                        Orientation::OutIn => vec![rows, width],
                        Orientation::InOut => vec![width, columns],
                    };
                    return self.mismatch(&layer.weight, expected, shape);
                }
                Some(_) => {}
            }
            self.check_bias(layer.bias.as_ref(), d_out)?;
            widths.push(d_out);
        }
        // The gate has the same shape as the layer beside it.
        if let (Some(gate), Some(up)) = (&self.contents.gate, self.contents.layers.first()) {
            let (found, expected) = (self.shape(&gate.weight)?, self.shape(&up.weight)?);
            if found != expected {
                return self.mismatch(&gate.weight, expected, found);
            }
            self.check_bias(gate.bias.as_ref(), widths[1])?;
        }
        if let (Some(norm), Some(found)) = (norm, &self.contents.norm)
            && let Some(&width) = widths.get(norm.place)
            && width != norm.width
        {
            let weight = &found.parameters.weight;
            return self.mismatch(weight, vec![width], self.shape(weight)?);
        }
        Ok(())
    }

    fn check_bias(&self, bias: Option<&String>, d_out: usize) -> Result<()> {
        let Some(bias) = bias else { return Ok(()) };
        let found = self.shape(bias)?;
        match vector(&found) == Some(d_out) {
            true => Ok(()),
            false => self.mismatch(bias, vec![d_out], found),
        }
    }
}

/// Returns the length of a vector, which may be stored as a row or a column.
pub(super) fn vector(shape: &[usize]) -> Option<usize> {
    match *shape {
        [n] | [1, n] | [n, 1] => Some(n),
        _ => None,
    }
}
