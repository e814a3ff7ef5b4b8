//! Distribution of rows to experts, and their mixture.

use candle_core::Result;

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    /// Gathers columns from each row, `[rows, n]`.
    pub(in crate::ops) fn gather(&self, ids: Array) -> Result<Self> {
        let dims = ids.dims().to_vec();
        let (slot, of_all) = (self.slot.clone(), self.dims().to_vec());
        let y = self.view()?.gather(&ids)?;
        Ok(self.computed((y, dims), &[slot.place], move |pass, dy| {
            pass.add(&slot, dy.zeros(&of_all)?.scatter_add(&ids, &dy)?)
        }))
    }

    pub(in crate::ops) fn deal_rows(&self, rows: &[Vec<u32>]) -> Result<Vec<Self>> {
        let (all, width) = (rows.concat(), self.slot.width);
        let (n_all, n_rows) = (all.len(), self.rows());
        let ids = Array::upload_ids(all, &[n_all], self.data.device())?;
        let dealt = self.view()?.select_rows(&ids)?;
        let slot = self.slot.clone();
        let dealt = self.computed(
            (dealt, vec![n_all, width]),
            &[slot.place],
            move |pass, dy| {
                // In f32, because a half type would stop growing.
                let wide = dy.widened()?;
                let sum = wide.zeros(&[n_rows, width])?.add_rows(&ids, &wide)?;
                pass.add(&slot, sum.to_dtype(dy.dtype())?)
            },
        );
        let mut start = 0;
        let mut part = |rows: &Vec<u32>| {
            let (range, place) = (start..start + rows.len(), dealt.slot.place);
            start = range.end;
            let dims = vec![range.len(), width];
            let part = dealt.data.narrow(0, range.start, range.len())?;
            Ok(
                self.computed((part, dims), &[place], move |pass, dy| match place {
                    Some(place) => pass.add_rows(place, n_all, range.clone(), dy),
                    None => Ok(()),
                }),
            )
        };
        rows.iter().map(&mut part).collect()
    }

    pub(in crate::ops) fn mixed(
        &self,
        weights: &Self,
        experts: Vec<(Self, Vec<usize>)>,
        top_k: usize,
    ) -> Result<Self> {
        let (n_rows, width) = (self.rows(), self.slot.width);
        // The experts' concatenated rows, and the index for each place's row.
        let order: Vec<u32> = experts
            .iter()
            .flat_map(|(_, places)| places.iter().map(|&place| place as u32))
            .collect();
        let n_places = order.len();
        let mut lies = vec![0u32; n_places];
        for (row, &place) in order.iter().enumerate() {
            lies[place as usize] = row as u32;
        }
        let device = self.data.device();
        let lies = Array::upload_ids(lies, &[n_places], device)?;
        let order = Array::upload_ids(order, &[n_places], device)?;
        let rows = experts.iter().map(|(rows, _)| rows.view());
        let rows = Array::cat(&rows.collect::<Result<Vec<_>>>()?, 0)?;
        let by_place = rows.select_rows(&lies)?.reshape(&[n_rows, top_k, width])?;
        // `[rows, 1, top_k]·[rows, top_k, width]`, which sums in f32.
        let factors = weights.view()?.reshape(&[n_rows, 1, top_k])?;
        let y = factors.matmul(&by_place)?.reshape(self.dims())?;
        let slot = |(rows, places): &(Self, Vec<usize>)| (rows.slot.clone(), places.len());
        let slots: Vec<_> = experts.iter().map(slot).collect();
        let weights_slot = weights.slot.clone();
        let asks = slots.iter().map(|(slot, _)| slot.place);
        let asks: Vec<_> = asks.chain([weights_slot.place]).collect();
        Ok(self.mapped(y, &asks, move |pass, dy| {
            let dy = dy.reshape(&[n_rows, 1, width])?;
            if weights_slot.place.is_some() {
                let dweights = dy.matmul(&by_place.transpose(1, 2)?)?;
                pass.add(&weights_slot, dweights.reshape(&[n_rows, top_k])?)?;
            }
            let drows = factors.transpose(1, 2)?.matmul(&dy)?;
            let drows = drows.reshape(&[n_places, width])?.select_rows(&order)?;
            let mut start = 0;
            for (slot, n) in &slots {
                pass.add(slot, drows.narrow(0, start, *n)?)?;
                start += n;
            }
            Ok(())
        }))
    }

    pub(in crate::ops) fn times_column(&self, column: &Self) -> Result<Self> {
        let (x, factors) = (self.view()?, column.view()?);
        let slots = [self.slot.clone(), column.slot.clone()];
        let asks = [slots[0].place, slots[1].place];
        let y = x.mul(&factors)?;
        Ok(self.mapped(y, &asks, move |pass, dy| {
            if slots[1].place.is_some() {
                let products = dy.widened()?.mul(&x.widened()?)?;
                let sums = products.sum(dy.dims().len() - 1)?;
                pass.add(&slots[1], sums.to_dtype(dy.dtype())?)?;
            }
            pass.add(&slots[0], dy.mul(&factors)?)
        }))
    }
}
