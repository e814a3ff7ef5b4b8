//! `candle-blocks chat`: a conversation with a model, turn by turn.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin};

use anyhow::{Result, bail};
use candle_blocks::generate::{GenerationOptions, Sampler};
use candle_blocks::text::{Conversation, Message, TextGeneration, TextGenerator};

use crate::conversation::TemplateArgs;
use crate::generate::note_end;
use crate::generation_settings::SettingArgs;
use crate::model::{ComputeArgs, ModelArgs};
use crate::progress::Progress;
use crate::{CommandOutcome, interrupt, output};

/// Commands for the end of the help.
const EXAMPLES: &str = r#"Examples:
  candle-blocks chat --model Qwen2.5-0.5B-Instruct
  candle-blocks chat -m MODEL.gguf --precision as-stored --system "Answer briefly." < questions.txt

Each line is a message. /reset forgets the conversation, and /exit or the end of the input ends it. Ctrl-C stops an answer."#;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    settings: SettingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// A conversation so far.
struct Dialogue<'a> {
    generator: TextGenerator,
    template: &'a TemplateArgs,
    sampler: Sampler,
    messages: Vec<Message>,
    /// The latest turn, from whose cache the next one continues.
    latest: Option<TextGeneration<Sampler>>,
}

impl Dialogue<'_> {
    /// Forgets all messages but the system's.
    fn reset(&mut self) {
        let system = self.template.system.as_deref().map(Message::system);
        (self.messages, self.latest) = (system.into_iter().collect(), None);
    }

    /// Prints the answer to a message. Ctrl-C stops it; what was printed stays in the conversation.
    fn answer(&mut self, message: &str) -> Result<()> {
        // From here on Ctrl-C does not end the program, though a prompt is read to its end.
        interrupt::was_pressed();
        self.messages.push(Message::user(message));
        let conversation = self.template.over(Conversation::new(&self.messages))?;
        let prompt = self.generator.chat_with(&conversation)?;
        let latest = self.latest.take();
        let mut turn = self.generator.start_after(latest, &prompt, self.sampler)?;
        let mut text = String::new();
        while !interrupt::was_pressed()
            && let Some(piece) = turn.next()
        {
            let piece = piece?;
            output::print_text(&piece)?;
            text += &piece;
        }
        output::print("\n")?;
        note_end(
            turn.generation(),
            self.generator.model(),
            self.generator.options(),
        );
        self.messages.push(Message::assistant(text));
        self.latest = Some(turn);
        Ok(())
    }
}

pub fn chat(args: &Args) -> Result<CommandOutcome> {
    let device = args.compute.device()?;
    let checkpoint = args.model.open()?;
    ModelArgs::note_beside(&checkpoint)?;
    args.compute.note_not_as_stored(&checkpoint)?;
    args.compute.note_dequantized(&checkpoint)?;
    let (options, sampler) = args.settings.over(GenerationOptions::of(&checkpoint)?)?;
    if options.beams.returned > 1 {
        bail!("--num-return-sequences is for `generate`: a conversation has one answer");
    }
    let loader = checkpoint.load(args.compute.weights(&device)?);
    let model = Progress::loading(|| loader.model())?;
    let generator = TextGenerator::new(&checkpoint, model)?.with_options(options.of_text());
    output::notes(generator.notes());
    let mut dialogue = Dialogue {
        generator,
        template: &args.template,
        sampler,
        messages: Vec::new(),
        latest: None,
    };
    dialogue.reset();
    let is_terminal = stdin().is_terminal();
    let mut lines = stdin().lock().lines();
    loop {
        if is_terminal {
            let _ = write!(stderr(), "> ");
        }
        let Some(line) = lines.next().transpose()? else {
            return Ok(CommandOutcome::Done);
        };
        match line.trim() {
            "" => continue,
            "/exit" => return Ok(CommandOutcome::Done),
            "/reset" => {
                dialogue.reset();
                continue;
            }
            message => dialogue.answer(message)?,
        }
        if interrupt::was_pressed() && !interrupt::forget_ctrl_c() {
            return Ok(CommandOutcome::Interrupted);
        }
        // While the program waits for a line, a signal ends it.
        interrupt::forget_ctrl_c();
    }
}
