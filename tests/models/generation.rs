//! Greedy generation returns the same tokens as transformers' `generate`.

use std::{collections::HashMap, fs};

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
use candle_blocks::generate::{Finish, GenerationOptions, Generator, Sampler, Sampling, prompts};
use candle_blocks::model::{Encoded, Model, ModelInput};
use candle_blocks::{Checkpoint, CheckpointOptions, Precision, Result, Weights};

use crate::cpu_only::cpu_only;
use crate::device::device;
use crate::same::assert_same;
use crate::weights::{is_present, weights};
use crate::whole::wholes;

/// Prompts and transformers' continuations.
struct Judged {
    /// The checkpoint's folder under `weights/`.
    folder: String,
    prompts: Vec<Vec<u32>>,
    tokens: Vec<Vec<u32>>,
    /// The encoder's output, for an encoder-decoder.
    encoded: Option<Encoded>,
    /// End tokens were suppressed. Otherwise, none occurred.
    without_stop: bool,
}

impl Judged {
    fn new(folder: &str, tensors: &HashMap<String, Tensor>, prefix: &str) -> Option<Self> {
        let get = |name: &str| tensors.get(&format!("{prefix}{name}"));
        let tokens = prompts(get("tokens")?, None).unwrap();
        let encoded = get("encoder_hidden_states").map(|states| Encoded {
            hidden_states: states.clone(),
            mask: get("encoder_attention_mask").cloned(),
            input_ids: None,
        });
        Some(Self {
            folder: folder.to_string(),
            // A mask with a gap is refused.
            prompts: prompts(get("input_ids")?, get("attention_mask")).ok()?,
            tokens,
            encoded,
            without_stop: !prefix.is_empty(),
        })
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(weights(&self.folder)).unwrap()
    }

    /// Returns options for as many tokens as transformers generated.
    fn options(&self, checkpoint: &Checkpoint) -> GenerationOptions {
        let n = self.tokens[0].len();
        let options = match self.without_stop {
            true => GenerationOptions::of(checkpoint)
                .unwrap()
                .with_min_new_tokens(n),
            false => GenerationOptions::default(),
        };
        options.with_max_new_tokens(n)
    }

    /// Returns the differences in tokens, unpacked and packed.
    fn check(&self) -> Vec<String> {
        let checkpoint = self.open();
        let forms = [
            (
                "cached",
                checkpoint
                    .load(Weights::Dense(DType::F32, &device()))
                    .model(),
            ),
            (
                "packed",
                checkpoint.load(Weights::Packed(Precision::F32)).model(),
            ),
        ];
        let wrong = forms.into_iter().filter_map(|(form, model)| {
            let wrong = match model {
                Ok(model) => self.check_model(&model, &checkpoint),
                Err(error) => Some(error.to_string()),
            };
            Some(format!("{} {form}: {}", self.folder, wrong?))
        });
        wrong.collect()
    }

    fn check_model(&self, model: &Model, checkpoint: &Checkpoint) -> Option<String> {
        let generator = Generator::new(model, self.options(checkpoint)).unwrap();
        let ours = match &self.encoded {
            None => generator.generate(&self.prompts, Sampler::greedy()),
            Some(encoded) => self.generate_after_encoder(
                &generator,
                Encoded {
                    hidden_states: encoded.hidden_states.to_device(model.device()).unwrap(),
                    ..encoded.clone()
                },
            ),
        };
        let ours = match ours {
            Ok(ours) => ours,
            Err(error) => return Some(error.to_string()),
        };
        let differs = |(ours, theirs): (&Vec<u32>, &Vec<u32>)| {
            (0..theirs.len()).find(|&i| ours.get(i) != theirs.get(i))
        };
        let first = ours
            .iter()
            .zip(&self.tokens)
            .map(differs)
            .collect::<Vec<_>>();
        let differs = first.iter().any(Option::is_some) || ours.len() != self.tokens.len();
        differs.then(|| format!("differs at {first:?}"))
    }
}

impl Judged {
    fn generate_after_encoder(
        &self,
        generator: &Generator,
        encoded: Encoded,
    ) -> Result<Vec<Vec<u32>>> {
        let begun = generator.start_with_encoder(encoded, &self.prompts, Sampler::greedy());
        let mut generation = begun?;
        for step in &mut generation {
            step?;
        }
        Ok(generation.into_tokens())
    }
}

fn plain(checkpoint: &Checkpoint) -> Model {
    checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap()
}

/// Returns cases with 200 tokens, or as many as there are positions, after prompts with different lengths.
fn long() -> Vec<Judged> {
    let path = weights("reference/generation.safetensors");
    let tensors = safetensors::load(path, &Device::Cpu).unwrap();
    let judged = tensors.keys().filter_map(|name| {
        let name = name.strip_suffix(".tokens")?;
        let folder = match name {
            "text" => "tiny-gpt-text".to_string(),
            family => format!("families/{family}"),
        };
        is_present(&folder).then(|| Judged::new(&folder, &tensors, &format!("{name}.")))?
    });
    let mut judged: Vec<Judged> = judged.collect();
    judged.sort_by(|a, b| a.folder.cmp(&b.folder));
    judged
}

/// Returns fixtures of whole models with tokens. (Encoder-decoders have a separate test.)
fn fixtures() -> Vec<Judged> {
    let judged = wholes().into_iter().filter_map(|whole| {
        let path = weights(&whole.name).join("whole.safetensors");
        let tensors = safetensors::load(path, &Device::Cpu).unwrap();
        let is_one = !tensors.contains_key("decoder_input_ids");
        is_one.then(|| Judged::new(&whole.name, &tensors, ""))?
    });
    judged.collect()
}

fn assert_all(judged: Vec<Judged>) {
    let wrong: Vec<String> = judged.iter().flat_map(Judged::check).collect();
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Returns the checkpoints under `families/` that continue a prompt without an encoder's output.
fn decoders() -> Vec<String> {
    let names = fs::read_dir(weights("families")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let continues = |name: &String| {
        let checkpoint = Checkpoint::open(weights(&format!("families/{name}")))?;
        let options = GenerationOptions::of(&checkpoint)?.with_max_new_tokens(1);
        let generator = Generator::new(
            checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .model()?,
            options,
        )?;
        generator.generate(&[vec![3, 4]], Sampler::greedy())
    };
    names.filter(|name| continues(name).is_ok()).collect()
}

#[test]
fn greedy_tokens_of_every_decoder_are_those_of_transformers() {
    let judged = long();
    if is_present("families") {
        let has = |name: &String| {
            judged
                .iter()
                .any(|one| one.folder == format!("families/{name}"))
        };
        let mut decoders = decoders();
        assert!(decoders.len() > 110, "only {} decoders", decoders.len());
        decoders.retain(|name| !has(name));
        assert!(decoders.is_empty(), "no tokens of {decoders:?} in the file");
    }
    assert_all(judged);
}

#[test]
fn greedy_tokens_of_every_fixture_of_a_whole_decoder_are_those_of_transformers() {
    let judged = fixtures();
    assert!(
        !is_present("families") || judged.len() >= 70,
        "only {} fixtures",
        judged.len()
    );
    assert_all(judged);
}

/// For an encoder-decoder: returns the differences in tokens after `decoder_input_ids`, or after the start token.
fn check_seq2seq(name: &str, tensors: &HashMap<String, Tensor>) -> Vec<String> {
    let checkpoint = CheckpointOptions::default().whole();
    let checkpoint = checkpoint.open(weights(name)).unwrap();
    let tokens = prompts(&tensors["tokens"], None).unwrap();
    let said = prompts(&tensors["decoder_input_ids"], None).unwrap();
    let input = |device: &Device| {
        let features = tensors.get("input_features");
        ModelInput {
            input_ids: tensors.get("input_ids").cloned(),
            attention_mask: tensors.get("attention_mask").cloned(),
            input_features: features.map(|features| features.to_device(device).unwrap()),
            ..ModelInput::default()
        }
    };
    let n = tokens[0].len();
    let options = GenerationOptions::default().with_max_new_tokens(n);
    let forms = [
        (
            "cached",
            checkpoint
                .load(Weights::Dense(DType::F32, &device()))
                .seq2seq(),
        ),
        (
            "packed",
            checkpoint.load(Weights::Packed(Precision::F32)).seq2seq(),
        ),
    ];
    let wrong = forms.into_iter().filter_map(|(form, model)| {
        let model = model.unwrap();
        let generator = Generator::new(model.decoder(), options.clone()).unwrap();
        let encoded = model.encode(&input(model.encoder().device())).unwrap();
        let generation = generator.start_with_encoder(encoded, &said, Sampler::greedy());
        let mut generation = generation.unwrap();
        generation.by_ref().for_each(|step| drop(step.unwrap()));
        let ours = generation.into_tokens();
        (ours != tokens).then(|| format!("{name} {form}: {ours:?}, expected {tokens:?}"))
    });
    wrong.collect()
}

#[test]
fn greedy_tokens_of_every_encoder_and_decoder_are_those_of_transformers() {
    let (mut n, mut wrong) = (0, Vec::new());
    for whole in wholes() {
        let path = weights(&whole.name).join("whole.safetensors");
        let tensors = safetensors::load(path, &Device::Cpu).unwrap();
        if tensors.contains_key("decoder_input_ids") && tensors.contains_key("tokens") {
            n += 1;
            wrong.extend(check_seq2seq(&whole.name, &tensors));
        }
    }
    assert!(!is_present("families") || n >= 3, "only {n}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the most likely token except one after a text, computed from the whole text.
fn likeliest(model: &Model, text: &[u32], except: u32) -> u32 {
    let ids = Tensor::new(text, &device()).unwrap().unsqueeze(0).unwrap();
    let logits = model
        .forward(&ModelInput::tokens(&ids))
        .unwrap()
        .logits
        .unwrap();
    let last = logits.get(0).unwrap().get(text.len() - 1).unwrap();
    let mut last: Vec<f32> = last.to_vec1().unwrap();
    last[except as usize] = f32::NEG_INFINITY;
    let largest = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b]));
    largest.unwrap() as u32
}

#[test]
fn without_a_cache_the_growing_text_gives_the_same_tokens() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let model = plain(&checkpoint);
    let judged = long()
        .into_iter()
        .find(|judged| judged.folder == "tiny-gpt-text")
        .unwrap();
    for (prompt, tokens) in judged.prompts.iter().zip(&judged.tokens) {
        assert!(!tokens.is_empty());
        let mut text = prompt.clone();
        for &token in tokens {
            // A line feed ends a text, and may not.
            assert_eq!(likeliest(&model, &text, 10), token);
            text.push(token);
        }
    }
}

/// Hands a decoder of text to a check: its layers on the device under test, and packed. Does nothing if the package leaves
/// it out.
fn of_text(check: impl Fn(&Model)) {
    if is_present("tiny-gpt-text") {
        let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
        check(&plain(&checkpoint));
        check(
            &checkpoint
                .load(Weights::Packed(Precision::F32))
                .model()
                .unwrap(),
        );
    }
}

/// Rows that end early leave the batch, and the others go on as they do alone.
#[test]
fn each_prompt_has_the_tokens_that_it_has_alone_when_others_end() {
    let texts = [
        "Sir Walter ",
        "An",
        "the",
        "\nCaptain Wentworth was not ",
        "Elizabeth",
    ];
    let prompts: Vec<Vec<u32>> = texts
        .map(|text| text.bytes().map(u32::from).collect())
        .into();
    let space = vec![u32::from(b'.'), u32::from(b'w'), u32::from(b',')];
    let options = GenerationOptions::default()
        .with_max_new_tokens(60)
        .with_stop_tokens(space);
    of_text(|model| {
        let generator = Generator::new(model, options.clone()).unwrap();
        let together = generator.generate(&prompts, Sampler::greedy()).unwrap();
        let lengths: Vec<usize> = together.iter().map(Vec::len).collect();
        assert!(lengths.iter().min() < lengths.iter().max(), "{lengths:?}");
        for (prompt, together) in prompts.iter().zip(&together) {
            let alone = generator
                .generate(std::slice::from_ref(prompt), Sampler::greedy())
                .unwrap();
            assert_eq!(&alone[0], together);
        }
    });
}

#[test]
fn sequences_that_are_not_in_a_cache_are_not_kept_and_nothing_is_lost() {
    of_text(|model| {
        let ids = Tensor::new(&[[65u32, 66], [67, 68]], &device()).unwrap();
        let mut cache = model.new_cache();
        let input = ModelInput::tokens(&ids);
        model.next_logits(&input, &mut cache).unwrap();
        for wrong in [&[2][..], &[1, 0], &[0, 0], &[]] {
            let refused = cache.keep_sequences(wrong).unwrap_err().to_string();
            assert!(refused.contains("a batch of 2"), "{refused}");
        }
        let both = model.next_logits(&input, &mut cache.clone()).unwrap();
        cache.keep_sequences(&[1]).unwrap();
        let second = ModelInput::tokens(&ids.narrow(0, 1, 1).unwrap());
        let alone = model.next_logits(&second, &mut cache).unwrap();
        let second = both.narrow(0, 1, 1).unwrap();
        assert_same(&alone, &second, "the second sequence");
    });
}

#[test]
fn generation_says_why_it_ended_and_what_came_until_then() {
    of_text(|model| {
        let options = GenerationOptions::default()
            .with_max_new_tokens(20)
            .with_stop_tokens(vec![u32::from(b' ')])
            .with_pad_token(0);
        let generator = Generator::new(model, options).unwrap();
        let long: Vec<u32> = b"a".repeat(126).into_iter().map(u32::from).collect();
        let prompts = [vec![u32::from(b'W')], long.clone(), vec![u32::from(b'Q')]];
        let mut generation = generator.start(&prompts, Sampler::greedy()).unwrap();
        let mut streamed = vec![Vec::new(); 3];
        while let Some(step) = generation.next() {
            for (to, token) in streamed.iter_mut().zip(step.unwrap()) {
                to.extend(token);
            }
            if generation.tokens(2).len() == 1 {
                generation.stop(2);
            }
        }
        assert_eq!(generation.finish(0), Some(Finish::StopToken));
        assert_eq!(generation.finish(2), Some(Finish::Stopped));
        let last = streamed[1].last().copied();
        let expected = match last == Some(u32::from(b' ')) {
            true => Finish::StopToken,
            false => Finish::Positions,
        };
        assert_eq!(generation.finish(1), Some(expected));
        assert!(streamed[1].len() <= 3);
        let padded = generation.padded().unwrap().to_vec2::<u32>().unwrap();
        for (i, row) in padded.iter().enumerate() {
            assert_eq!(row[..streamed[i].len()], streamed[i]);
            assert!(row[streamed[i].len()..].iter().all(|&token| token == 0));
        }
        assert_eq!(generation.into_tokens(), streamed);
    });
}

#[test]
fn options_are_those_of_generation_config_json_or_else_of_config_json() {
    cpu_only("generation_config.json is read");
    if !is_present("tiny-gpt-text") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        let from = weights("tiny-gpt-text").join(name);
        fs::copy(from, folder.path().join(name)).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let options = || GenerationOptions::of(&checkpoint);
    let of_config = options().unwrap();
    assert_eq!(
        (of_config.stop_tokens, of_config.pad_token),
        (vec![10], Some(10))
    );
    assert_eq!(of_config.recommended, None);

    let write = |json: &str| fs::write(folder.path().join("generation_config.json"), json).unwrap();
    write(
        r#"{"eos_token_id": [7, 9], "pad_token_id": 3, "max_new_tokens": 17, "do_sample": true,
        "temperature": 0.6, "top_p": 0.9, "suppress_tokens": [1, 2], "forced_eos_token_id": 9}"#,
    );
    let of_file = options().unwrap();
    assert_eq!(of_file.stop_tokens, [7, 9]);
    assert_eq!(
        (of_file.pad_token, of_file.max_new_tokens),
        (Some(3), Some(17))
    );
    assert_eq!(
        (of_file.suppressed, of_file.forced_last),
        (vec![1, 2], vec![9])
    );
    // transformers' own default is the 50 likeliest.
    let recommended = Sampling::at(0.6).with_top_p(0.9).with_top_k(50);
    assert_eq!(of_file.recommended, Some(recommended));

    write(r#"{"eos_token_id": "end"}"#);
    let wrong = message(options());
    assert!(
        wrong.contains("generation_config.json") && wrong.contains("eos_token_id"),
        "{wrong}"
    );
}

/// The effects of transformers' processors for them.
#[test]
fn tokens_that_may_not_or_must_be_chosen_are_not_or_are() {
    of_text(|model| {
        let chosen = |options: GenerationOptions| {
            let generator = Generator::new(model, options.with_max_new_tokens(6)).unwrap();
            generator
                .generate(&[vec![65]], Sampler::greedy())
                .unwrap()
                .remove(0)
        };
        let free = chosen(GenerationOptions::default());
        let with = |change: &dyn Fn(&mut GenerationOptions)| {
            let mut options = GenerationOptions::default();
            change(&mut options);
            chosen(options)
        };
        assert!(
            !with(&|o| o.suppressed = free.clone())
                .iter()
                .any(|t| free.contains(t))
        );
        assert_ne!(with(&|o| o.suppressed_first = vec![free[0]])[0], free[0]);
        assert_eq!(with(&|o| o.forced_first = Some(90))[0], 90);
        assert_eq!(with(&|o| o.forced_last = vec![90])[..5], free[..5]);
        assert_eq!(with(&|o| o.forced_last = vec![90])[5], 90);
        assert_eq!(with(&|o| o.stop_tokens = vec![free[0]]), free[..1]);
        let later = with(&|o| (o.stop_tokens, o.min_new_tokens) = (vec![free[0]], Some(3)));
        assert!(later.len() >= 3 && later[0] != free[0], "{later:?}");
    });
}

fn message<T>(result: candle_blocks::Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn prompts_that_do_not_fit_are_refused_with_the_limit() {
    of_text(|model| {
        let generator = Generator::new(model, GenerationOptions::default()).unwrap();
        let refused =
            |prompts: &[Vec<u32>]| message(generator.generate(prompts, Sampler::greedy()));
        let long = refused(&[vec![1], vec![65; 129]]);
        for word in ["prompt", "129 tokens", "128 positions", "shorten"] {
            assert!(long.contains(word), "{long}");
        }
        assert!(refused(&[vec![]]).contains("empty"));
        assert!(refused(&[]).contains("none"));
        let token = refused(&[vec![65, 256]]);
        assert!(
            token.contains("256") && token.contains("0 to 255"),
            "{token}"
        );
    });
}

#[test]
fn a_model_without_a_head_for_tokens_is_refused() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let model = plain(&checkpoint);
    let refused = message(Generator::new(&model, GenerationOptions::default()));
    assert!(
        refused.contains("no language modeling head") && refused.contains("ForCausalLM"),
        "{refused}"
    );
}

#[test]
fn any_closure_from_logits_to_tokens_chooses() {
    of_text(|model| {
        let options = GenerationOptions::default().with_max_new_tokens(5);
        let generator = Generator::new(model, options).unwrap();
        let prompts = [vec![72, 101], vec![84]];
        let argmax = |logits: &Tensor| logits.argmax(1)?.to_vec1();
        let ours = generator.generate(&prompts, Sampler::greedy()).unwrap();
        assert_eq!(generator.generate(&prompts, argmax).unwrap(), ours);
        let one = |_: &Tensor| Ok(vec![1]);
        let refused = message(generator.generate(&prompts, one));
        assert!(
            refused.contains("1 tokens were selected for 2"),
            "{refused}"
        );
    });
}
