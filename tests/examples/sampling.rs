//! Texts that `examples/train` generates after a prompt, at the edges of its settings.

use crate::{
    message::message,
    model::{Gpt, Size},
    said::assert_says,
    sample::{Sampling, sample},
    train::SIZE,
};

fn written(model: &Gpt, prompt: &[u8], n: usize, sampling: Sampling) -> anyhow::Result<Vec<u8>> {
    let mut written = Vec::new();
    sample(model, prompt, n, sampling, |byte| written.push(byte))?;
    Ok(written)
}

#[test]
fn at_temperature_0_the_likeliest_byte_is_chosen_whatever_the_seed() {
    let model = Gpt::fresh(SIZE, 7).unwrap();
    let at = |temperature, seed| written(&model, b"a", 8, Sampling { temperature, seed });
    let likeliest = at(0.0, 3).unwrap();
    assert_eq!(likeliest, at(0.0, 4).unwrap());
    assert_ne!(at(1.0, 3).unwrap(), at(1.0, 4).unwrap());
    let mut text = b"a".to_vec();
    for byte in likeliest {
        let logits = model.next(&text, &mut model.new_cache()).unwrap();
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(logits[byte as usize], largest);
        text.push(byte);
    }
    for wrong in [-1.0, f64::NAN] {
        assert_says(message(at(wrong, 3)), &["temperature"]);
    }
}

#[test]
fn a_model_that_sees_one_byte_writes() {
    let model = Gpt::fresh(Size { context: 1, ..SIZE }, 7).unwrap();
    let sampling = Sampling {
        temperature: 1.0,
        seed: 3,
    };
    assert_eq!(written(&model, b"ab", 5, sampling).unwrap().len(), 5);
}
