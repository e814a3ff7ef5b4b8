//! Texts are continued in whole characters, and end before stop strings.

use candle_blocks::generate::{Finish, GenerationOptions, Generator, Sampler, Sampling};
use candle_blocks::text::TextGenerator;
use candle_blocks::{Checkpoint, Precision};

use crate::weights::{is_present, weights};

fn checkpoint() -> Option<Checkpoint> {
    is_present("tiny-gpt-text").then(|| Checkpoint::open(weights("tiny-gpt-text")).unwrap())
}

/// The bytes behind a text, as tokens.
fn bytes(
    checkpoint: &Checkpoint,
    text: &str,
    options: GenerationOptions,
    sampler: Sampler,
) -> Vec<u8> {
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let generator = Generator::new(&model, options).unwrap();
    let prompt = text.bytes().map(u32::from).collect();
    let tokens = generator.generate(&[prompt], sampler).unwrap();
    tokens[0].iter().map(|&token| token as u8).collect()
}

#[test]
fn a_text_is_continued_by_the_characters_of_its_tokens() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    // Hot enough for bytes that are no characters.
    for sampling in [Sampling::greedy(), Sampling::at(1.0), Sampling::at(3.0)] {
        let sampler = Sampler::new(sampling.with_seed(5)).unwrap();
        let options = GenerationOptions::default().with_max_new_tokens(90);
        let expected = bytes(&checkpoint, "Anne ", options.clone(), sampler);
        let generator = TextGenerator::new(&checkpoint, &model)
            .unwrap()
            .with_options(options);
        let prompt = generator.prompt("Anne ").unwrap();
        let generation = generator.start(&prompt, sampler).unwrap();
        let pieces: Vec<String> = generation.map(Result::unwrap).collect();
        assert!(pieces.len() > 20);
        assert_eq!(pieces.concat(), String::from_utf8_lossy(&expected));
    }
}

/// Of "é", the first byte alone is no text.
#[test]
fn a_character_comes_with_the_last_of_its_bytes() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let text = "aé→𝄞\u{fffd}z";
    let mut bytes = text.bytes();
    let n = text.len();
    let next = move |_: &candle_blocks::candle_core::Tensor| Ok(vec![bytes.next().unwrap().into()]);
    let options = GenerationOptions::default().with_max_new_tokens(n);
    let generator = TextGenerator::new(&checkpoint, &model)
        .unwrap()
        .with_options(options);
    let prompt = generator.prompt("x").unwrap();
    let pieces = generator.start(&prompt, next).unwrap().map(Result::unwrap);
    let pieces: Vec<String> = pieces.filter(|piece| !piece.is_empty()).collect();
    assert_eq!(pieces, ["a", "é", "→", "𝄞", "\u{fffd}z"]);
}

#[test]
fn a_text_ends_before_a_stop_string() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let generator = TextGenerator::new(&checkpoint, &model).unwrap();
    let generator = generator.with_options(GenerationOptions::default().with_max_new_tokens(60));
    let whole = generator
        .generate("Sir Walter ", Sampler::greedy())
        .unwrap();
    let stop: String = whole.chars().skip(20).take(4).collect();
    let expected = &whole[..whole.find(&stop).unwrap()];
    let generator = generator.with_stop_strings(&["never this", &stop]);
    let prompt = generator.prompt("Sir Walter ").unwrap();
    let mut generation = generator.start(&prompt, Sampler::greedy()).unwrap();
    let text: String = generation.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, expected);
    assert_eq!(generation.finish(), Some(Finish::Stopped));
    assert_eq!(generation.tokens().len(), expected.len() + stop.len());
}
