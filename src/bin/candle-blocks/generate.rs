//! `candle-blocks generate`: continues a text, or token ids, with a decoder.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use candle_blocks::Checkpoint;
use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::config::{EmbeddingsConfig, Joint};
use candle_blocks::generate::{
    CausalDecoder, Finish, Generation, GenerationOptions, Generator, Sampler, Sampling, prompts,
};
use candle_blocks::model::{Model, ModelInput, Seq2Seq};
use candle_blocks::text::{ChatTemplate, Conversation, TextGenerator, Tokenizer};
use candle_blocks::verify::Fixture;

use crate::conversation::ConversationArgs;
use crate::model::{ComputeArgs, Form, ModelArgs};
use crate::{Outcome, interrupt, output};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to continue; its continuation goes to standard output as it comes.
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present_any = ["input_ids", "messages"],
        conflicts_with = "input_ids"
    )]
    prompt: Option<String>,
    #[command(flatten)]
    conversation: ConversationArgs,
    /// A safetensors file with input_ids [batch, seq] to continue, and optionally attention_mask [batch, seq]. Of a model with an
    /// encoder, with what that reads, such as input_features [batch, bands, steps], and optionally decoder_input_ids
    /// [batch, n] to continue.
    #[arg(long, visible_alias = "input", value_name = "FILE")]
    input_ids: Option<PathBuf>,
    /// The most new tokens. [default: the checkpoint's generation_config.json, or 256]
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,
    /// A text before which the continuation ends; may be given several times.
    #[arg(long, value_name = "TEXT", conflicts_with = "input_ids")]
    stop: Vec<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// A safetensors file for the new tokens, [batch, n]; shorter rows are filled up with the token for padding.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// How tokens are chosen: the likeliest, unless any of these is given.
#[derive(clap::Args)]
struct SamplingArgs {
    /// Draw tokens at random, as the checkpoint's generation_config.json recommends.
    #[arg(long)]
    sample: bool,
    /// Draw tokens at random, with logits divided by this.
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Draw from the K likeliest tokens.
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw from the likeliest tokens whose probabilities add up to P.
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Draw from tokens that are at least P times as likely as the likeliest.
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Divide the logits of tokens that occur by this.
    #[arg(long, value_name = "R")]
    repetition_penalty: Option<f64>,
    /// Draw the same tokens again with the same seed.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

impl SamplingArgs {
    fn sampler(&self, options: &GenerationOptions) -> Result<Sampler> {
        let numbers = [self.temperature, self.top_p, self.min_p];
        let draws =
            numbers.iter().any(Option::is_some) || self.top_k.is_some() || self.seed.is_some();
        let mut sampling = match (self.sample, &options.recommended) {
            (true, Some(recommended)) => *recommended,
            (true, None) => Sampling::at(1.0),
            (false, _) if draws => Sampling::at(1.0),
            (false, _) => Sampling::greedy(),
        };
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_k = self.top_k.or(sampling.top_k);
        sampling.top_p = self.top_p.or(sampling.top_p);
        sampling.min_p = self.min_p.or(sampling.min_p);
        sampling.seed = self.seed.unwrap_or(sampling.seed);
        let penalty = self.repetition_penalty;
        sampling.repetition_penalty = penalty.unwrap_or(sampling.repetition_penalty);
        Ok(Sampler::new(sampling)?)
    }
}

pub fn generate(args: &Args) -> Result<Outcome> {
    let device = args.compute.device()?;
    let checkpoint = args.model.open()?;
    let conversation = args.conversation.conversation(args.prompt.as_deref())?;
    if let Some(conversation) = conversation
        .as_ref()
        .filter(|_| args.conversation.print_prompt)
    {
        let tokenizer = Tokenizer::of(&checkpoint)?;
        output::print_text(&ChatTemplate::of(&tokenizer)?.text(conversation)?)?;
        return Ok(Outcome::Done);
    }
    ModelArgs::note_beside(&checkpoint)?;
    if let Some(output) = &args.output {
        let read = args.model.files().chain(args.input_ids.as_deref());
        let read = read.chain(args.conversation.files());
        output::check_file(output, &checkpoint, read)?;
    }
    if args.stop.iter().any(String::is_empty) {
        bail!("--stop is empty; give at least one character");
    }
    let mut options = GenerationOptions::of(&checkpoint)?;
    options.max_new_tokens = args.max_new_tokens.unwrap_or(options.max_new_tokens);
    let sampler = args.sampling.sampler(&options)?;
    let mut clock = Clock::start();
    let form = args.compute.form(false)?;
    let file = args.input_ids.as_ref().map(Fixture::open_input);
    let tokens = match (file.transpose()?, behind_encoder(&checkpoint)?) {
        (Some(file), true) => {
            let (model, dtype) = match form {
                Form::Packed(precision) => (checkpoint.packed_seq2seq(precision)?, DType::F32),
                Form::Plain => {
                    let dtype = args.compute.dtype;
                    (checkpoint.seq2seq(dtype, &device)?, dtype)
                }
            };
            let kind = (dtype, &device);
            let tokens = say(&model, kind, &file, options, sampler, &mut clock);
            tokens.with_context(|| file.path().display().to_string())?
        }
        (None, true) => bail!(
            "--prompt is a text to continue, but the model's decoder says something about another: give that as --input-ids"
        ),
        (file, false) => {
            let input = file.as_ref().map(|file| {
                let path = || file.path().display().to_string();
                anyhow::Ok((path, input_prompts(file).with_context(path)?))
            });
            let input = input.transpose()?;
            let model = match form {
                Form::Packed(precision) => checkpoint.packed_model(precision)?,
                Form::Plain => checkpoint.model(args.compute.dtype, &device)?,
            };
            clock = Clock::start();
            match input {
                Some((path, prompts)) => {
                    let generator = Generator::new(&model, options)?;
                    let tokens = continue_ids(&generator, &prompts, sampler, &mut clock);
                    tokens.with_context(path)?
                }
                None => {
                    let generator = TextGenerator::new(&checkpoint, &model)?;
                    let generator = generator.with_options(options);
                    continue_text(args, conversation.as_ref(), generator, sampler, &mut clock)?
                }
            }
        }
    };
    let is_interrupted = interrupt::was_pressed();
    if let Some(path) = &args.output {
        let path = match is_interrupted {
            true => &output::partial(path),
            false => path,
        };
        write_safetensors(path, &[("tokens".to_string(), tokens)], None)?;
    } else if args.input_ids.is_some() {
        for row in tokens.to_vec2::<u32>()? {
            let row: Vec<String> = row.iter().map(u32::to_string).collect();
            output::print(&(row.join(" ") + "\n"))?;
        }
    }
    clock.report();
    Ok(match is_interrupted {
        true => Outcome::Interrupted,
        false => Outcome::Done,
    })
}

/// Whether the checkpoint is an encoder and its decoder.
fn behind_encoder(checkpoint: &Checkpoint) -> Result<bool> {
    let other = checkpoint.other_stack()?;
    Ok(other.is_some_and(|other| matches!(other.joint, Joint::Memory { .. })))
}

fn input_prompts(file: &Fixture) -> Result<Vec<Vec<u32>>> {
    let ids = required(file, "input_ids", "[batch, seq]")?;
    Ok(prompts(ids, file.attention_mask())?)
}

fn required<'f>(file: &'f Fixture, name: &str, shape: &str) -> Result<&'f Tensor> {
    let missing = || format!("holds no {name} {shape}");
    file.tensor(name).with_context(missing)
}

fn continue_ids(
    generator: &Generator,
    prompts: &[Vec<u32>],
    sampler: Sampler,
    clock: &mut Clock,
) -> Result<Tensor> {
    let generation = generator.start(prompts, sampler)?;
    all_tokens(generation, prompts.len(), generator.model(), clock)
}

/// What a decoder says of the tokens or the sounds in a file, which its encoder reads.
fn say(
    model: &Seq2Seq,
    (dtype, device): (DType, &Device),
    file: &Fixture,
    options: GenerationOptions,
    sampler: Sampler,
    clock: &mut Clock,
) -> Result<Tensor> {
    let (read, input) = match &model.encoder().config().embeddings {
        EmbeddingsConfig::Spectrum(_) => {
            let read = required(file, "input_features", "[batch, bands, steps]")?;
            let features = match read.dtype().is_float() {
                true => &read.to_dtype(dtype)?.to_device(device)?,
                false => read, // which the model refuses
            };
            (read, ModelInput::spectrum(features))
        }
        _ => {
            let read = required(file, "input_ids", "[batch, seq]")?;
            (read, ModelInput::tokens(read))
        }
    };
    let input = ModelInput {
        attention_mask: file.attention_mask().cloned(),
        ..input
    };
    let prompts = match (file.tensor("decoder_input_ids"), options.decoder_start) {
        (Some(ids), _) => prompts(ids, None)?,
        (None, Some(start)) => vec![vec![start]; read.dim(0)?],
        (None, None) => bail!(
            "the checkpoint names no decoder_start_token_id; add it to generation_config.json, or decoder_input_ids to the \
             file"
        ),
    };
    *clock = Clock::start();
    let generator = Generator::new(model.decoder(), options)?;
    let generation = generator.start_behind(model.encode(&input)?, &prompts, sampler)?;
    all_tokens(generation, prompts.len(), model.decoder(), clock)
}

fn all_tokens(
    mut generation: Generation<CausalDecoder, Sampler>,
    n: usize,
    model: &Model,
    clock: &mut Clock,
) -> Result<Tensor> {
    while !interrupt::was_pressed() {
        match generation.next() {
            Some(step) => clock.count(step?.iter().flatten().count()),
            None => break,
        }
    }
    note_end((0..n).map(|index| generation.finish(index)), model);
    Ok(generation.padded()?)
}

fn continue_text(
    args: &Args,
    conversation: Option<&Conversation>,
    generator: TextGenerator,
    sampler: Sampler,
    clock: &mut Clock,
) -> Result<Tensor> {
    let stop: Vec<&str> = args.stop.iter().map(String::as_str).collect();
    let generator = generator.with_stop_strings(&stop);
    let text = args.prompt.as_deref().unwrap_or_default();
    let prompt = match conversation {
        Some(conversation) => generator.chat_with(conversation)?,
        None => generator.prompt(text)?,
    };
    if prompt.ids.is_empty() {
        bail!("--prompt is empty; give at least one character");
    }
    let mut generation = generator.start(&prompt, sampler)?;
    let mut n = 0;
    while !interrupt::was_pressed() {
        let Some(piece) = generation.next() else {
            break;
        };
        output::print_text(&piece?)?;
        clock.count(generation.tokens().len() - n);
        n = generation.tokens().len();
    }
    output::print("\n")?;
    note_end([generation.finish()].into_iter(), generator.model());
    Ok(Tensor::new(generation.tokens(), &Device::Cpu)?.unsqueeze(0)?)
}

/// Says where generation was cut off.
fn note_end(mut ends: impl Iterator<Item = Option<Finish>>, model: &Model) {
    if !interrupt::was_pressed() && ends.any(|end| end == Some(Finish::Positions)) {
        let limit = candle_blocks::generate::max_positions(model).unwrap_or_default();
        output::warn(format_args!(
            "note: a text ends at the {limit} positions that the model has"
        ));
    }
}

/// How long generation takes.
struct Clock {
    begin: Instant,
    first: Option<Duration>,
    /// The tokens that came first: one of each prompt.
    n_first: usize,
    n_tokens: usize,
}

impl Clock {
    fn start() -> Self {
        Self {
            begin: Instant::now(),
            first: None,
            n_first: 0,
            n_tokens: 0,
        }
    }

    fn count(&mut self, n_tokens: usize) {
        if self.first.is_none() && n_tokens > 0 {
            self.first = Some(self.begin.elapsed());
            self.n_first = n_tokens;
        }
        self.n_tokens += n_tokens;
    }

    fn report(&self) {
        let Some(first) = self.first else { return };
        let (all, first) = (self.begin.elapsed().as_secs_f64(), first.as_secs_f64());
        let rest = match self.n_tokens - self.n_first {
            0 => String::new(),
            n => format!(", then {:.1} tokens/s", n as f64 / (all - first)),
        };
        let n = self.n_tokens;
        output::warn(format_args!(
            "{n} tokens in {all:.2} s: the first after {first:.2} s{rest}"
        ));
    }
}
