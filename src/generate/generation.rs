//! Generation in progress: an iterator over a batch's new tokens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{Device, Result as CandleResult, Tensor, bail};

use super::beams::{Beam, Beams, check_scores};
use super::decoder_input::DecoderInput;
use super::lengths::Lengths;
use super::processors::{LogitsProcessor, SequenceRow, log_softmax};
use super::{Choose, Decoder, GenerationOptions, Sequence, StopStrings};
use crate::error::{Error, Result};

/// Generation in progress. Each step of the iterator returns one new token for each prompt, and `None` for one that has
/// ended. With beam search no step returns tokens: all are available when the iterator ends.
///
/// You can stop at any step; [`Self::tokens`] has the tokens generated until then. Sequences that have ended are no longer
/// computed.
#[derive(Debug)]
pub struct Generation<D, C> {
    input: DecoderInput<D>,
    choose: C,
    options: GenerationOptions,
    stop_strings: Option<StopStrings>,
    deadline: Option<Instant>,
    prompts: Vec<Padded>,
    /// The encoder's input tokens for each prompt; without an encoder, the prompt.
    encoder: Vec<Vec<u32>>,
    sequences: Vec<Continued>,
    search: Search,
    has_failed: bool,
}

/// The search strategy.
#[derive(Debug)]
enum Search {
    /// A sequence for each prompt: the indices of those in the decoder's batch.
    Single(Vec<usize>),
    /// Several sequences for each prompt: the prompts in progress, with the batch index of each one's first sequence.
    Beams(Vec<OfPrompt>),
}

/// The beams for one prompt.
#[derive(Debug)]
struct OfPrompt {
    prompt: usize,
    beams: Beams,
    /// The batch indices of the sequences that its running sequences extend.
    parents: Vec<usize>,
}

/// A prompt, padded on the left to the length of the longest one that came with it.
#[derive(Debug)]
struct Padded {
    tokens: Vec<u32>,
    n_padding: usize,
    rules: Arc<Rules>,
}

/// The rules for prompts that came together.
#[derive(Debug)]
struct Rules {
    lengths: Lengths,
    processors: Vec<LogitsProcessor>,
}

/// A padded prompt and its continuation.
#[derive(Clone, Debug)]
struct Continued {
    prompt: usize,
    tokens: Vec<u32>,
    finish: Option<Finish>,
    score: Option<f32>,
}

/// The reason why a sequence has ended. [`Generation::finish`](crate::generate::Generation::finish) returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// Its last token is a stop token.
    StopToken,
    /// Its last token completes one of [`GenerationOptions::stop_strings`].
    StopString,
    /// It has the maximum number of tokens.
    MaxNewTokens,
    /// The model has no more positions.
    Positions,
    /// [`GenerationOptions::max_time`] is over.
    Time,
    /// [`Generation::stop`] was called.
    Stopped,
}

impl<D: Decoder, C: Choose> Generation<D, C> {
    /// Starts to continue `prompts`. For a decoder-only model, use [`Generator`](super::Generator); this function accepts
    /// any kind of decoder.
    ///
    /// # Errors
    /// If there is no prompt, or one is empty, longer than the decoder's positions or as long as `max_length`; if options do
    /// not fit each other, or need the tokenizer.
    pub fn new(
        decoder: D,
        prompts: &[Vec<u32>],
        choose: C,
        options: GenerationOptions,
    ) -> Result<Self> {
        Self::stopping_at(None, decoder, prompts, choose, options)
    }

    /// Like [`Self::new`], with the tokens' texts.
    pub(super) fn stopping_at(
        stop_strings: Option<StopStrings>,
        decoder: D,
        prompts: &[Vec<u32>],
        choose: C,
        options: GenerationOptions,
    ) -> Result<Self> {
        if !options.stop_strings.is_empty() && stop_strings.is_none() {
            let reason = "stop_strings needs the tokens' texts: continue texts, put the \
             checkpoint's tokenizer.json beside it, or remove it";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        let mut input = DecoderInput::new(decoder);
        check_prompts(prompts, input.max_positions())?;
        let padded = Padded::all(prompts, &options)?;
        let encoder = match input.decoder().encoder_tokens()? {
            None => padded.iter().map(|prompt| prompt.tokens.clone()).collect(),
            Some(read) if read.is_empty() && options.needs_encoder_tokens() => {
                let reason = "encoder_repetition_penalty and encoder_no_repeat_ngram_size need the \
                 encoder's input tokens, but its input was something else; remove them";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
            Some(read) => read,
        };
        let beams = options.beams;
        beams.validate()?;
        let search = match beams.beams {
            1 => Search::Single(Vec::new()),
            n if choose.draws() => {
                return Err(Error::InvalidConfig(format!(
                    "num_beams is {n} and tokens are sampled (do_sample): beam sampling is not \
                     supported; set num_beams to 1 (GenerationOptions::with_beams), or select \
                     the most likely tokens (Sampler::greedy)"
                )));
            }
            _ => {
                input.decoder().copy_sequences()?;
                let prompt_beams = |(prompt, padded): (usize, &Padded)| OfPrompt {
                    prompt,
                    beams: Beams::new(beams, &padded.tokens, padded.rules.lengths.max),
                    parents: Vec::new(),
                };
                Search::Beams(padded.iter().enumerate().map(prompt_beams).collect())
            }
        };
        let begun = |(prompt, padded)| vec![Continued::new((prompt, padded)); beams.returned];
        let sequences = padded.iter().enumerate().flat_map(begun).collect();
        let seconds = options.max_time.map(Duration::try_from_secs_f64);
        let seconds = seconds.transpose().map_err(|error| {
            Error::InvalidConfig(format!("max_time: {error}; expected seconds"))
        })?;
        Ok(Self {
            input,
            choose,
            stop_strings,
            deadline: seconds.and_then(|seconds| Instant::now().checked_add(seconds)),
            prompts: padded,
            encoder,
            sequences,
            search,
            options,
            has_failed: false,
        })
    }

    /// Adds a prompt to the running batch. The next step computes it, beside one new token for each of the others, and
    /// returns its first token. Each sequence has the same logits, bit for bit, as without the others. Returns the index
    /// of its sequence. The iterator goes on with it even if all others have ended.
    ///
    /// ```
    /// # use candle_blocks::{CheckpointOptions, Precision, Weights, candle_core::Tensor};
    /// # use candle_blocks::generate::{CausalDecoder, Generation, GenerationOptions};
    /// # let options = CheckpointOptions::default().family_file("examples/smollm3.json");
    /// # let model = options.open("weights/like/smollm3")?.load(Weights::Packed(Precision::F32)).model()?;
    /// let options = GenerationOptions::default().with_max_new_tokens(4);
    /// let greedy = |logits: &Tensor| logits.argmax(1)?.to_vec1::<u32>();
    /// let mut batch = Generation::new(CausalDecoder::new(model), &[vec![5, 7, 9]], greedy, options)?;
    /// batch.next().transpose()?; // a token for the first prompt
    /// let second = batch.join(&[8, 2])?;
    /// batch.next().transpose()?; // a token for each
    /// batch.stop(0); // the first one leaves
    /// batch.next().transpose()?;
    /// assert_eq!((batch.tokens(0).len(), batch.tokens(second).len()), (2, 2));
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the prompt is empty, longer than the decoder's positions or as long as `max_length`; in beam search; or if the
    /// decoder attends to an encoder output.
    pub fn join(&mut self, prompt: &[u32]) -> Result<usize> {
        if matches!(self.search, Search::Beams(_)) {
            let reason = "a prompt cannot join beam search; set num_beams to 1";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        if self.input.decoder().encoder_tokens()?.is_some() {
            let reason = "a prompt cannot join a batch that attends to an encoder output";
            return Err(Error::input("prompt", reason));
        }
        let prompts = [prompt.to_vec()];
        check_prompts(&prompts, self.input.max_positions())?;
        for padded in Padded::all(&prompts, &self.options)? {
            let index = self.prompts.len();
            self.sequences.push(Continued::new((index, &padded)));
            self.encoder.push(padded.tokens.clone());
            self.prompts.push(padded);
        }
        Ok(self.sequences.len() - 1)
    }

    /// Returns the new tokens so far for the prompt with this index. If several sequences are returned for each prompt,
    /// those for the first prompt come first.
    ///
    /// # Panics
    /// If there are fewer prompts.
    pub fn tokens(&self, index: usize) -> &[u32] {
        let sequence = &self.sequences[index];
        &sequence.tokens[self.prompts[sequence.prompt].tokens.len()..]
    }

    /// Returns why the prompt with this index has ended; `None` if it has not.
    ///
    /// # Panics
    /// If there are fewer prompts.
    pub fn finish(&self, index: usize) -> Option<Finish> {
        self.sequences[index].finish
    }

    /// Returns a note with length and limit if a sequence has more tokens, with its prompt, than
    /// [`GenerationOptions::context_length`]. transformers prints a reminder then, and goes on too.
    pub fn beyond_context(&self) -> Option<String> {
        let limit = self.options.context_length?;
        let length = |of: &Continued| of.tokens.len() - self.prompts[of.prompt].n_padding;
        let longest = self.sequences.iter().map(length).max()?;
        (longest > limit).then(|| {
            format!(
                "prompt and new text have {longest} tokens, but the model's context length is {limit}, beyond which texts often \
                 make no sense; shorten the prompt, or generate fewer tokens"
            )
        })
    }

    /// Returns the sequence's score in beam search, transformers' `sequences_scores`; `None` without beam search, or before
    /// its end.
    ///
    /// # Panics
    /// If there are fewer sequences.
    pub fn score(&self, index: usize) -> Option<f32> {
        self.sequences[index].score
    }

    /// Returns the number of sequences: one for each prompt, or several.
    pub fn n_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Ends the sequence with this index after its current tokens.
    ///
    /// # Panics
    /// If there are fewer prompts.
    pub fn stop(&mut self, index: usize) {
        self.sequences[index].finish.get_or_insert(Finish::Stopped);
    }

    /// Returns the decoder, whose cache holds the tokens so far.
    pub fn into_decoder(self) -> D {
        self.input.into_decoder()
    }

    /// Returns the new tokens of each sequence.
    pub fn into_tokens(self) -> Vec<Vec<u32>> {
        (0..self.sequences.len())
            .map(|index| self.tokens(index).to_vec())
            .collect()
    }

    /// Returns the new tokens as a tensor `[sequences, n]` of `u32`, with shorter rows padded.
    ///
    /// # Errors
    /// If a row needs padding and there is no padding token.
    pub fn padded(&self) -> Result<Tensor> {
        let rows = || (0..self.sequences.len()).map(|index| self.tokens(index));
        let n = rows().map(<[u32]>::len).max().unwrap_or(0);
        let mut all = Vec::with_capacity(n * self.sequences.len());
        for row in rows() {
            all.extend(row);
            match self.filling() {
                Some(pad) => all.resize(all.len() + n - row.len(), pad),
                None if row.len() < n => {
                    let reason = "no pad_token is set, but the sequences have different lengths";
                    return Err(Error::input("pad_token", reason));
                }
                None => {}
            }
        }
        let shape = (self.sequences.len(), n);
        Ok(Tensor::from_vec(all, shape, &Device::Cpu)?)
    }

    /// Returns the padding token. In transformers' beam search, padding token 0 means none.
    fn filling(&self) -> Option<u32> {
        let pad = self.options.pad_token;
        match self.search {
            Search::Beams(_) if pad == Some(0) => self.options.stop_tokens.first().copied().or(pad),
            _ => pad,
        }
    }

    /// Returns one new token for each unfinished sequence; `None` if all are finished.
    fn step(&mut self) -> CandleResult<Option<Vec<Option<u32>>>> {
        match &mut self.search {
            Search::Single(_) => self.single_step(),
            Search::Beams(_) => self.beam_step(),
        }
    }

    fn single_step(&mut self) -> CandleResult<Option<Vec<Option<u32>>>> {
        let running = self.sequences.iter().enumerate();
        let running = running.filter(|(_, sequence)| sequence.finish.is_none());
        // Those that join come last.
        let running: Vec<usize> = running.map(|(i, _)| i).collect();
        let Search::Single(batch) = &mut self.search else {
            bail!("a step of another search");
        };
        if running.is_empty() {
            return Ok(None);
        }
        let place = |index| batch.iter().position(|at| at == index);
        let parents: Vec<usize> = running.iter().filter_map(place).collect();
        batch.clone_from(&running);
        let sequences = running.iter().map(|&index| {
            let sequence = &self.sequences[index];
            let n_padding = self.prompts[sequence.prompt].n_padding;
            (index, sequence.tokens.as_slice(), n_padding)
        });
        let sequences: Vec<(usize, &[u32], usize)> = sequences.collect();
        let read = sequences.iter().map(|&(_, tokens, n)| &tokens[n..]);
        let read: Vec<&[u32]> = read.collect();
        let logits = self.input.logits(&read, &parents)?;
        let rows = sequences.iter().map(|&(index, tokens, n_padding)| {
            let prompt = self.sequences[index].prompt;
            let row = SequenceRow {
                tokens,
                n_padding,
                encoder: encoder_of(&self.encoder, prompt),
            };
            (&self.prompts[prompt].rules.processors[..], row)
        });
        let rows: Vec<(&[LogitsProcessor], SequenceRow)> = rows.collect();
        let logits = processed(logits, &rows)?;
        let chosen = sequences
            .iter()
            .zip(&read)
            .map(|(&(index, ..), &tokens)| Sequence { index, tokens });
        let chosen: Vec<Sequence> = chosen.collect();
        let tokens = self.choose.choose(&logits, &chosen)?;
        if tokens.len() != running.len() {
            bail!(
                "{} tokens were selected for {} sequences",
                tokens.len(),
                running.len()
            );
        }
        let mut step = vec![None; self.sequences.len()];
        for (&index, token) in running.iter().zip(tokens) {
            step[index] = Some(token);
            let sequence = &mut self.sequences[index];
            sequence.tokens.push(token);
            let sequence = &self.sequences[index];
            let finish = self
                .ending()
                .of(&sequence.tokens, &self.prompts[sequence.prompt]);
            self.sequences[index].finish = finish;
        }
        Ok(Some(step))
    }

    /// Extends each running beam by one token.
    fn beam_step(&mut self) -> CandleResult<Option<Vec<Option<u32>>>> {
        let is_over = self
            .sequences
            .iter()
            .all(|sequence| sequence.finish.is_some());
        let Search::Beams(all) = &self.search else {
            bail!("a step of another search");
        };
        let mut running: Vec<OfPrompt> = Vec::new();
        if is_over || all.is_empty() {
            return Ok(None);
        }
        if let Search::Beams(all) = &mut self.search {
            running.append(all);
        }
        let n = self.options.beams.beams;
        let is_first = self.input.batch() == 0;
        // At first, a prompt is read once for all its beams.
        let n_read = if is_first { 1 } else { n };
        let read = running.iter().flat_map(|of| {
            let n_padding = self.prompts[of.prompt].n_padding;
            let beams = of.beams.running[..n_read].iter();
            beams.map(move |beam| &beam.tokens[n_padding..])
        });
        let read: Vec<&[u32]> = read.collect();
        let parents: Vec<usize> = running.iter().flat_map(|of| of.parents.clone()).collect();
        let (logits, n_tokens) = numbers(self.input.logits(&read, &parents)?)?;
        let ending = self.ending();
        let logits_of_prompt = logits.chunks_exact((n_read * n_tokens).max(1));
        for (place, (of, logits)) in running.iter_mut().zip(logits_of_prompt).enumerate() {
            let mut logits = match is_first {
                true => logits.repeat(n),
                false => logits.to_vec(),
            };
            let prompt = &self.prompts[of.prompt];
            let processors = &prompt.rules.processors;
            check_tokens(processors, n_tokens)?;
            let each = logits.chunks_exact_mut(n_tokens.max(1));
            for (beam, logits) in of.beams.running.iter().zip(each) {
                log_softmax(logits);
                let row = SequenceRow {
                    tokens: &beam.tokens,
                    n_padding: prompt.n_padding,
                    encoder: encoder_of(&self.encoder, of.prompt),
                };
                apply(processors, &row, logits);
                check_scores(logits)?;
            }
            let n_stop_tokens = self.options.stop_tokens.len();
            let ends = |tokens: &[u32]| ending.of(tokens, prompt).is_some();
            let parents = of.beams.step(&logits, n_stop_tokens, ends);
            let parents = parents
                .iter()
                .map(|&of| if is_first { place } else { place * n + of });
            of.parents = parents.collect();
        }
        let is_stuck = running.iter().all(|of| of.beams.is_stuck);
        let (done, running): (Vec<_>, Vec<_>) =
            { running.into_iter() }.partition(|of| is_stuck || of.beams.is_done());
        for of in done {
            let first = of.prompt * self.options.beams.returned;
            let prompt = &self.prompts[of.prompt];
            for (index, Beam { tokens, score }) in (first..).zip(of.beams.best()) {
                let finish = self.ending().of(&tokens, prompt);
                self.sequences[index] = Continued {
                    prompt: of.prompt,
                    finish: finish.or(Some(Finish::Stopped)),
                    score: Some(score),
                    tokens,
                };
            }
        }
        self.search = Search::Beams(running);
        Ok(Some(vec![None; self.sequences.len()]))
    }

    fn ending(&self) -> EndConditions<'_> {
        EndConditions {
            stop_tokens: &self.options.stop_tokens,
            stop_strings: self.stop_strings.as_ref(),
            max_positions: self.input.max_positions(),
            is_late: self.deadline.is_some_and(|end| Instant::now() > end),
        }
    }
}

/// Ends sequences at a step.
struct EndConditions<'g> {
    stop_tokens: &'g [u32],
    stop_strings: Option<&'g StopStrings>,
    max_positions: usize,
    is_late: bool,
}

impl EndConditions<'_> {
    /// Returns why a sequence ends, if it does.
    fn of(&self, tokens: &[u32], prompt: &Padded) -> Option<Finish> {
        let is_completed = |stop: &StopStrings| stop.are_completed(tokens);
        match tokens.last() {
            Some(last) if self.stop_tokens.contains(last) => Some(Finish::StopToken),
            _ if self.stop_strings.is_some_and(is_completed) => Some(Finish::StopString),
            _ if tokens.len() >= prompt.rules.lengths.max => Some(Finish::MaxNewTokens),
            _ if tokens.len() - prompt.n_padding > self.max_positions => Some(Finish::Positions),
            _ if self.is_late => Some(Finish::Time),
            _ => None,
        }
    }
}

fn check_prompts(prompts: &[Vec<u32>], limit: usize) -> Result<()> {
    let fail = |reason: String| Err(Error::input("prompt", reason));
    if prompts.is_empty() {
        return fail("there is none; give at least one".to_string());
    }
    for (i, prompt) in prompts.iter().enumerate() {
        let n = prompt.len();
        if n == 0 {
            return fail(format!("number {i} is empty; give at least one token"));
        }
        if n > limit {
            return fail(format!(
                "number {i} has {n} tokens, but the model has {limit} positions; shorten it"
            ));
        }
    }
    Ok(())
}

fn encoder_of(encoder: &[Vec<u32>], prompt: usize) -> &[u32] {
    encoder.get(prompt).map_or(&[], Vec::as_slice)
}

/// Returns logits `[rows, n_tokens]` on the CPU, and the number of tokens.
fn numbers(logits: Tensor) -> CandleResult<(Vec<f32>, usize)> {
    let (_, n_tokens) = logits.dims2()?;
    let logits = logits.to_device(&Device::Cpu)?;
    Ok((logits.flatten_all()?.to_vec1()?, n_tokens))
}

fn check_tokens(processors: &[LogitsProcessor], n_tokens: usize) -> CandleResult<()> {
    let mut all = processors.iter();
    all.try_for_each(|processor| processor.check(n_tokens))
        .map_err(candle_core::Error::wrap)
}

fn apply(processors: &[LogitsProcessor], row: &SequenceRow, logits: &mut [f32]) {
    let length = row.tokens.len();
    for processor in processors.iter().filter(|p| p.acts_at(length)) {
        processor.apply(row, logits);
    }
}

/// Applies each row's processors to its logits; returns the input if none has an effect.
fn processed(logits: Tensor, rows: &[(&[LogitsProcessor], SequenceRow)]) -> CandleResult<Tensor> {
    let mut all = rows.iter();
    if !all.any(|(processors, row)| processors.iter().any(|p| p.acts_at(row.tokens.len()))) {
        return Ok(logits);
    }
    let (mut logits, n_tokens) = numbers(logits)?;
    for ((processors, row), logits) in rows.iter().zip(logits.chunks_exact_mut(n_tokens.max(1))) {
        check_tokens(processors, n_tokens)?;
        apply(processors, row, logits);
    }
    Tensor::from_vec(logits, (rows.len(), n_tokens), &Device::Cpu)
}

impl<D: Decoder, C: Choose> Iterator for Generation<D, C> {
    type Item = Result<Vec<Option<u32>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let step = self.step();
        self.has_failed = step.is_err();
        step.map_err(Error::from).transpose()
    }
}

impl Padded {
    /// # Errors
    /// If prompts are as long as `max_length` or longer, or options do not fit each other.
    fn all(prompts: &[Vec<u32>], options: &GenerationOptions) -> Result<Vec<Self>> {
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let lengths = Lengths::new(options, longest)?;
        let processors = LogitsProcessor::list(options, &lengths)?;
        let rules = Arc::new(Rules {
            lengths,
            processors,
        });
        let pad = options.padding.or(options.pad_token).unwrap_or(0);
        let padded = |prompt: &Vec<u32>| {
            let n_padding = longest - prompt.len();
            let mut tokens = vec![pad; n_padding];
            tokens.extend(prompt);
            Self {
                tokens,
                n_padding,
                rules: rules.clone(),
            }
        };
        Ok(prompts.iter().map(padded).collect())
    }
}

impl Continued {
    /// Returns a sequence without new tokens. It has ended if it may have none.
    fn new((prompt, padded): (usize, &Padded)) -> Self {
        let has_no_room = padded.rules.lengths.new_tokens() == 0;
        Self {
            prompt,
            tokens: padded.tokens.clone(),
            finish: has_no_room.then_some(Finish::MaxNewTokens),
            score: None,
        }
    }
}
