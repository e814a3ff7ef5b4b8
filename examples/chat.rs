//! Answers a question, or continues a text, and streams the result.
//!
//! ```text
//! cargo run --release --example chat --features text -- Qwen2.5-0.5B-Instruct "Why is the sky blue?"
//! cargo run --release --example chat --features text
//! ```
//!
//! A model with a chat template answers; any other model continues the text. Without arguments, the committed byte-level
//! model continues a sentence from its training text.

use std::{env::args, io::Write};

use candle_blocks::generate::{Sampler, Sampling};
use candle_blocks::text::{ChatTemplate, Message, TextOptions};
use candle_blocks::{Precision, Result};

fn main() -> Result<()> {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/weights/tiny-gpt-text");
    let directory = args().nth(1).unwrap_or(committed.to_string());
    let text = args().nth(2).unwrap_or("Anne Elliot was ".to_string());

    let options = TextOptions::default().precision(Precision::Bf16);
    let generator = options.generator(directory)?;
    let options = generator.options().clone().with_max_new_tokens(200);
    let usual = Sampling::at(0.7).with_top_p(0.9);
    let sampler = Sampler::new(options.recommended.unwrap_or(usual))?;
    let generator = generator.with_options(options);

    let prompt = match ChatTemplate::of(generator.tokenizer()) {
        Ok(_) => generator.chat(&[Message::user(text)])?,
        Err(_) => generator.prompt(&text)?,
    };
    for piece in generator.start(&prompt, sampler)? {
        print!("{}", piece?);
        let _ = std::io::stdout().flush();
    }
    println!();
    Ok(())
}
