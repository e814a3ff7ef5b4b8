//! `candle-blocks generate`: continues a text, or token ids, with a decoder.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use candle_blocks::Checkpoint;
use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::config::{EmbeddingsConfig, TwoStackKind};
use candle_blocks::generate::{
    CausalDecoder, Finish, Generation, GenerationOptions, Generator, Sampler, StopStrings, prompts,
};
use candle_blocks::model::{Model, ModelInput, Seq2Seq};
use candle_blocks::text::{ChatTemplate, Conversation, TextGenerator, Tokenizer};
use candle_blocks::verify::Fixture;

use crate::conversation::ConversationArgs;
use crate::generation_settings::SettingArgs;
use crate::input::InputFile;
use crate::model::{ComputeArgs, Form, ModelArgs};
use crate::progress::Progress;
use crate::{CommandOutcome, interrupt, output};

/// Commands for the end of the help.
const EXAMPLES: &str = r#"Examples:
  candle-blocks generate --model MODEL.gguf --precision as-stored --chat --prompt "Why is the sky blue?"
  candle-blocks generate -m Qwen2.5-0.5B-Instruct -p "Once upon a time" -t 0.7 -s 7 -n 100
  candle-blocks generate --hub HuggingFaceTB/SmolLM2-135M --prompt "Hello" --max-new-tokens 40"#;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, next_help_heading = "Input and output")]
pub struct Args {
    /// The text to continue. The new text is streamed to standard output.
    #[arg(
        long,
        short,
        value_name = "TEXT",
        required_unless_present_any = ["input_ids", "messages"],
        conflicts_with = "input_ids"
    )]
    prompt: Option<String>,
    /// A safetensors file (`-` is standard input) with input_ids [batch, seq] to continue, and optionally attention_mask [batch, seq]. For a model with
    /// an encoder: the encoder's input, such as input_features [batch, bands, steps], and optionally decoder_input_ids
    /// [batch, n] to continue.
    #[arg(long, visible_alias = "input", value_name = "FILE")]
    input_ids: Option<PathBuf>,
    /// A safetensors file for the new tokens, [batch, n]; shorter rows are filled with the padding token.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    conversation: ConversationArgs,
    #[command(flatten)]
    settings: SettingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn generate(args: &Args) -> Result<CommandOutcome> {
    let device = args.compute.device()?;
    let checkpoint = args.model.open()?;
    let conversation = args.conversation.conversation(args.prompt.as_deref())?;
    if let Some(conversation) = conversation
        .as_ref()
        .filter(|_| args.conversation.print_prompt)
    {
        let tokenizer = Tokenizer::of(&checkpoint)?;
        output::print_text(&ChatTemplate::of(&tokenizer)?.text(conversation)?)?;
        return Ok(CommandOutcome::Done);
    }
    ModelArgs::note_beside(&checkpoint)?;
    args.compute.note_not_as_stored(&checkpoint)?;
    args.compute.note_dequantized(&checkpoint)?;
    if let Some(output) = &args.output {
        let read = args.model.files().chain(args.input_ids.as_deref());
        let read = read.chain(args.conversation.files());
        output::check_file("--output", output, &checkpoint, read)?;
    }
    let options = GenerationOptions::of(&checkpoint)?;
    let (options, sampler) = args.settings.over(options)?;
    let drawn_seed = args.settings.drawn_seed(&sampler);
    let mut clock = Clock::start();
    let input = args.input_ids.as_deref().map(InputFile::of).transpose()?;
    let file = input
        .as_ref()
        .map(|input| Fixture::open_input(input.path()));
    let loader = || anyhow::Ok(checkpoint.load(args.compute.weights(&device)?));
    let stop = match options.stop_strings.as_slice() {
        [] => None,
        strings => Some(Tokenizer::of(&checkpoint)?.stop_strings(strings)?),
    };
    let generated = match (file.transpose()?, is_encoder_decoder(&checkpoint)?) {
        (Some(file), true) => {
            let loader = loader()?;
            let model = Progress::loading(|| loader.seq2seq())?;
            let dtype = match args.compute.form(false)? {
                Form::Packed(_) => DType::F32,
                Form::Plain => args.compute.dtype,
            };
            let kind = (dtype, &device);
            let generator = begin(model.decoder(), options, stop)?;
            let said = say(&model, kind, &file, &generator, sampler, &mut clock);
            said.with_context(|| file.path().display().to_string())?
        }
        (None, true) => bail!(
            "--prompt is a text for a decoder alone, but this model has an encoder: give the encoder's input with --input-ids"
        ),
        (file, false) => {
            let input = file.as_ref().map(|file| {
                let path = || file.path().display().to_string();
                anyhow::Ok((path, input_prompts(file, &options).with_context(path)?))
            });
            let input = input.transpose()?;
            let loader = loader()?;
            let model = Progress::loading(|| loader.model())?;
            clock = Clock::start();
            match input {
                Some((path, (padding, prompts))) => {
                    let options = GenerationOptions { padding, ..options };
                    let generator = begin(model, options, stop)?;
                    let generation = generator.start(&prompts, sampler).with_context(path)?;
                    all_tokens(generation, &generator, &mut clock).with_context(path)?
                }
                None => {
                    let generator = TextGenerator::new(&checkpoint, model)?;
                    let generator = generator.with_options(options.of_text());
                    output::notes(generator.notes());
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
        write_safetensors(path, &generated.tensors(), None)?;
    } else if args.input_ids.is_some() {
        for row in generated.tokens.to_vec2::<u32>()? {
            let row: Vec<String> = row.iter().map(u32::to_string).collect();
            output::print(&(row.join(" ") + "\n"))?;
        }
    }
    clock.report(drawn_seed);
    Ok(match is_interrupted {
        true => CommandOutcome::Interrupted,
        false => CommandOutcome::Done,
    })
}

/// Returns whether the checkpoint is an encoder with its decoder.
fn is_encoder_decoder(checkpoint: &Checkpoint) -> Result<bool> {
    let other = checkpoint.second_stack()?;
    Ok(other.is_some_and(|other| matches!(other.kind, TwoStackKind::EncoderDecoder { .. })))
}

fn begin(
    model: impl Into<Arc<Model>>,
    options: GenerationOptions,
    stop: Option<StopStrings>,
) -> Result<Generator> {
    let generator = Generator::new(model, options)?;
    Ok(match stop {
        Some(stop) => generator.with_stop_strings(stop),
        None => generator,
    })
}

/// Returns the prompts in a file, and their padding token. Without a mask, tokens equal to the padding token are padding, as in
/// transformers, unless it is also an end token.
fn input_prompts(
    file: &Fixture,
    options: &GenerationOptions,
) -> Result<(Option<u32>, Vec<Vec<u32>>)> {
    let ids = required(file, "input_ids", "[batch, seq]")?;
    let pad = options
        .pad_token
        .filter(|pad| !options.stop_tokens.contains(pad));
    match (file.attention_mask(), pad) {
        (Some(mask), _) => {
            let read = prompts(ids, Some(mask))?;
            let marks = mask.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
            let ids = prompts(ids, None)?.concat();
            let dropped = ids.iter().zip(marks).find(|(_, mark)| *mark == 0);
            Ok((dropped.map(|(&id, _)| id), read))
        }
        (None, Some(pad)) if !ids.dtype().is_float() => {
            let mask = ids.to_dtype(DType::I64)?.ne(i64::from(pad))?;
            let said = || format!("without attention_mask, token {pad} (pad_token_id) is padding");
            Ok((Some(pad), prompts(ids, Some(&mask)).with_context(said)?))
        }
        (None, _) => Ok((None, prompts(ids, None)?)),
    }
}

fn required<'f>(file: &'f Fixture, name: &str, shape: &str) -> Result<&'f Tensor> {
    let missing = || format!("holds no {name} {shape}");
    file.tensor(name).with_context(missing)
}

/// Generates with a decoder from the tokens or audio features in a file, which its encoder reads.
fn say(
    model: &Seq2Seq,
    (dtype, device): (DType, &Device),
    file: &Fixture,
    generator: &Generator,
    sampler: Sampler,
    clock: &mut Clock,
) -> Result<Generated> {
    let input = match &model.encoder().config().embeddings {
        EmbeddingsConfig::Spectrum(_) => {
            let read = required(file, "input_features", "[batch, bands, steps]")?;
            let features = match read.dtype().is_float() {
                true => &read.to_dtype(dtype)?.to_device(device)?,
                false => read, // which the model refuses
            };
            ModelInput::spectrum(features)
        }
        _ => ModelInput::tokens(required(file, "input_ids", "[batch, seq]")?),
    };
    let input = ModelInput {
        attention_mask: file.attention_mask().cloned(),
        ..input
    };
    *clock = Clock::start();
    let encoded = model.encode(&input)?;
    let start = generator.options().decoder_start;
    let prompts = match (file.tensor("decoder_input_ids"), start) {
        (Some(ids), Some(start)) if input.input_ids.is_some() => {
            begun_with(start, prompts(ids, None)?)
        }
        (Some(ids), _) => prompts(ids, None)?,
        (None, _) => generator.beginnings(&encoded)?,
    };
    let generation = generator.start_with_encoder(encoded, &prompts, sampler)?;
    all_tokens(generation, generator, clock)
}

/// Puts the decoder's start token in front, as in transformers, unless a sequence already begins with it.
fn begun_with(start: u32, said: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    if said.iter().any(|tokens| tokens.first() == Some(&start)) {
        return said;
    }
    let begun = said
        .into_iter()
        .map(|tokens| [vec![start], tokens].concat());
    begun.collect()
}

/// The new tokens, and the scores from beam search.
struct Generated {
    tokens: Tensor,
    scores: Option<Tensor>,
}

impl Generated {
    fn of(generation: &Generation<CausalDecoder, Sampler>) -> Result<Self> {
        let scores = (0..generation.n_sequences()).map(|index| generation.score(index));
        let scores: Option<Vec<f32>> = scores.collect();
        let tensor = |scores: Vec<f32>| Tensor::new(scores, &Device::Cpu);
        Ok(Self {
            tokens: generation.padded()?,
            scores: scores.map(tensor).transpose()?,
        })
    }

    fn tensors(self) -> Vec<(String, Tensor)> {
        let scores = self
            .scores
            .map(|scores| ("sequences_scores".to_string(), scores));
        let tokens = ("tokens".to_string(), self.tokens);
        std::iter::once(tokens).chain(scores).collect()
    }
}

/// Generates every token, with progress.
fn all_tokens(
    mut generation: Generation<CausalDecoder, Sampler>,
    generator: &Generator,
    clock: &mut Clock,
) -> Result<Generated> {
    let progress = Progress::with_template(0, "{spinner} {pos} tokens, {rate}")?;
    while !interrupt::was_pressed() {
        match generation.next() {
            Some(step) => {
                step?;
                clock.count(n_tokens(&generation));
                progress.set(n_tokens(&generation));
            }
            None => break,
        }
    }
    drop(progress);
    note_end(&generation, generator.model(), generator.options());
    Generated::of(&generation)
}

fn n_tokens(generation: &Generation<CausalDecoder, Sampler>) -> usize {
    let tokens = |index| generation.tokens(index).len();
    (0..generation.n_sequences()).map(tokens).sum()
}

fn continue_text(
    args: &Args,
    conversation: Option<&Conversation>,
    generator: TextGenerator,
    sampler: Sampler,
    clock: &mut Clock,
) -> Result<Generated> {
    let text = args.prompt.as_deref().unwrap_or_default();
    let prompt = match conversation {
        Some(conversation) => generator.chat_with(conversation)?,
        None => generator.prompt(text)?,
    };
    if prompt.ids.is_empty() {
        bail!("--prompt is empty; give at least one character");
    }
    let mut generation = generator.start(&prompt, sampler)?;
    while !interrupt::was_pressed() {
        let Some(piece) = generation.next() else {
            break;
        };
        output::print_text(&piece?)?;
        clock.count(n_tokens(generation.generation()));
    }
    output::print("\n")?;
    let generation = generation.generation();
    for index in 1..generation.n_sequences() {
        let text = generator.tokenizer().decode(generation.tokens(index))?;
        output::print_text(&(text + "\n"))?;
    }
    note_end(generation, generator.model(), generator.options());
    Generated::of(generation)
}

/// Prints a note if a length limit cut a sequence.
pub fn note_end(
    generation: &Generation<CausalDecoder, Sampler>,
    model: &Model,
    options: &GenerationOptions,
) {
    let mut ends = (0..generation.n_sequences()).filter_map(|index| generation.finish(index));
    if let Some(note) = generation.beyond_context() {
        output::warn(format_args!("note: {note}"));
    }
    if interrupt::was_pressed() {
        return;
    }
    let is_cut = |end: Finish| end == Finish::MaxNewTokens && !options.sets_length();
    match ends.find(|&end| end == Finish::Positions || is_cut(end)) {
        Some(Finish::Positions) => {
            let limit = candle_blocks::generate::max_positions(model).unwrap_or_default();
            output::warn(format_args!(
                "note: a text ends at the model's limit of {limit} positions"
            ));
        }
        Some(_) => output::warn(format_args!(
            "note: no length is given, so there are at most {} new tokens, as in transformers; --max-new-tokens sets the length",
            GenerationOptions::NEW_TOKENS
        )),
        None => {}
    }
}

/// The time that generation takes.
struct Clock {
    begin: Instant,
    first: Option<Duration>,
    /// The number of tokens in the first step: one for each prompt.
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

    /// Records that `n_tokens` exist now.
    fn count(&mut self, n_tokens: usize) {
        if self.first.is_none() && n_tokens > 0 {
            self.first = Some(self.begin.elapsed());
            self.n_first = n_tokens;
        }
        self.n_tokens = n_tokens;
    }

    /// Prints the speed, and the seed that was drawn for sampling.
    fn report(&self, drawn_seed: Option<u64>) {
        let Some(first) = self.first else { return };
        let (all, first) = (self.begin.elapsed().as_secs_f64(), first.as_secs_f64());
        let rest = match self.n_tokens - self.n_first {
            0 => String::new(),
            n => format!(", then {:.1} tokens/s", n as f64 / (all - first)),
        };
        let n = self.n_tokens;
        let seed = drawn_seed.map(|seed| format!("; --seed {seed} samples them again"));
        output::warn(format_args!(
            "{n} tokens in {all:.2} s: the first after {first:.2} s{rest}{}",
            seed.unwrap_or_default()
        ));
    }
}
