//! Parallel attention and feed-forward (GPT-J, Falcon).

use candle_core::Result;

use super::TransformerBlock;
use crate::config::ParallelNorm;
use crate::layers::{BlockFeedForward, Mixer};
use crate::layers::{pass::Pass, state::BlockStateMut, sublayer::StageRecorder};
use crate::ops::Value;

impl TransformerBlock {
    /// Computes `x + dropout(attention(norm(x)) + feed_forward(norm(x)))` (Wang and Komatsuzaki 2021, GPT-J).
    pub(super) fn apply_parallel(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut BlockStateMut>,
        recorder: &mut StageRecorder,
        norm: ParallelNorm,
    ) -> Result<Value> {
        let train = pass.context.train();
        let attention_input = recorder.record(self.mixer.input(x)?)?;
        let last = self.last_rows(x, pass)?;
        let (x, last_input) = match &last {
            None => (x, attention_input.clone()),
            Some(last) => (last, self.mixer.input(last)?),
        };
        let residual = self.mixer.residual(x, &last_input);
        // If dropout applies to the sum of both branches, the residual is added last.
        let dropout = self.own.dropout_of_sum(train);
        let added_to = dropout.is_none().then_some(residual);
        let mix = |inner: &Mixer, x: &Value, residual: Option<&Value>| {
            inner.apply(x, pass, state.map(|state| &mut *state.mixer), residual)
        };
        let attended = self
            .mixer
            .added(&attention_input, added_to, train, recorder, mix)?;
        let attended = match dropout.is_some() && recorder.is_on() {
            false => recorder.record(attended)?,
            true => {
                let (route, precision) = (attended.route(), attended.precision());
                let attended = Value::on(route, precision, &attended.tensor()?)?;
                recorder.record(residual.add(&attended)?)?;
                attended
            }
        };
        let input = match norm {
            ParallelNorm::Shared => last_input.clone(),
            ParallelNorm::Separate => self.feed_forward.input(x)?,
        };
        let input = recorder.record(input)?;
        let feed = |inner: &BlockFeedForward, x: &Value, residual: Option<&Value>| {
            inner.apply(x, residual, train)
        };
        let sum = self
            .feed_forward
            .added(&input, Some(&attended), train, recorder, feed)?;
        recorder.record(match dropout {
            Some(dropout) => residual.add(&dropout.apply(&sum, train)?)?,
            None => sum,
        })
    }
}
