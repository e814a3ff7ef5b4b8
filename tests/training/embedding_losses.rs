//! Losses of embedding models: sentence-transformers is the judge.

use std::slice::from_ref;

use candle_blocks::Result;
use candle_blocks::candle_core::{Tensor, Var};
use candle_blocks::train::Gradients;
use candle_blocks::train::losses::{
    GradCache, PairSimilarity, TripletDistance, cosent, margin_mse, matryoshka, multiple_negatives,
    triplet,
};

use crate::device::device;
use crate::message::message;
use crate::reference::{Reference, assert_passed};

type Loss<'r> = Box<dyn Fn(&[Tensor]) -> Result<Tensor> + 'r>;

/// Returns the number of inputs and the loss for each case of the reference.
fn cases(reference: &Reference) -> Vec<(&'static str, usize, Loss<'_>)> {
    use PairSimilarity::{Cosine, Dot};
    let by = |distance, margin| -> Loss<'_> {
        Box::new(move |x| triplet(&x[0], &x[1], &x[2], distance, margin))
    };
    let negatives = |similarity, scale| -> Loss<'_> {
        Box::new(move |x| multiple_negatives(&x[0], &x[1..], similarity, scale))
    };
    let labels = reference.on_cpu("labels").to_vec1::<f32>().unwrap();
    let margins = reference.get("margins");
    let dims = [(6, 1.0), (3, 0.5), (2, 0.25)];
    let short = negatives(Cosine, 20.0);
    vec![
        ("multiple_negatives", 2, negatives(Cosine, 20.0)),
        ("multiple_negatives.dot", 4, negatives(Dot, 0.7)),
        ("multiple_negatives.hard", 4, negatives(Cosine, 5.0)),
        (
            "cosent",
            2,
            Box::new(move |x| cosent(&x[0], &x[1], &labels, 20.0)),
        ),
        ("triplet.euclidean", 3, by(TripletDistance::default(), 5.0)),
        ("triplet.cosine", 3, by(TripletDistance::Cosine, 0.1)),
        ("triplet.manhattan", 3, by(TripletDistance::Manhattan, 1.0)),
        (
            "margin_mse",
            4,
            Box::new(move |x| margin_mse(&x[0], &x[1], &x[2..], &margins)),
        ),
        (
            "matryoshka",
            3,
            Box::new(move |x| matryoshka(x, &dims, &short)),
        ),
    ]
}

#[test]
fn losses_and_gradients_are_those_of_sentence_transformers() {
    let reference = Reference::open("losses");
    let mut comparisons = Vec::new();
    for (name, n, loss) in cases(&reference) {
        let inputs = (0..n).map(|i| {
            let input = reference.get(&format!("input.{i}"));
            (i.to_string(), Var::from_tensor(&input).unwrap())
        });
        let inputs: Vec<(String, Var)> = inputs.collect();
        let leaves: Vec<Tensor> = inputs.iter().map(|(_, x)| x.as_tensor().clone()).collect();
        let value = loss(&leaves).unwrap();
        comparisons.push(reference.compare(&format!("{name}.loss"), &value));
        let gradients = Gradients::backward(&inputs, &value).unwrap();
        for (i, _) in &inputs {
            let gradient = gradients.get(i).unwrap().unwrap();
            comparisons.push(reference.compare(&format!("{name}.gradient.{i}"), &gradient));
        }
        // The cache has the same gradients.
        let cache = GradCache::new(&leaves, &loss).unwrap();
        for (i, (_, leaf)) in inputs.iter().enumerate() {
            let surrogate = cache.surrogate(i, 0..5, leaf).unwrap();
            let passed = Gradients::backward(&inputs, &surrogate).unwrap();
            let again = passed.get(&i.to_string()).unwrap().unwrap();
            comparisons.push(reference.compare(&format!("{name}.gradient.{i}"), &again));
        }
    }
    assert!(comparisons.len() > 50, "{}", comparisons.len());
    assert_passed(&comparisons);
}

/// A large batch in parts has the gradients of the whole.
#[test]
fn a_cached_gradient_in_parts_is_that_of_the_whole_batch() {
    let weight = Var::randn(0f32, 1., (6, 3), &device()).unwrap();
    let parameters = [("weight".to_string(), weight.clone())];
    let texts = [(); 2].map(|()| Tensor::randn(0f32, 1., (9, 6), &device()).unwrap());
    let vectors = |rows: &Tensor| rows.matmul(&weight).unwrap();
    let loss = |x: &[Tensor]| multiple_negatives(&x[0], &x[1..], PairSimilarity::Cosine, 20.0);
    let all = [vectors(&texts[0]), vectors(&texts[1])];
    let value = loss(&all).unwrap();
    let whole = Gradients::backward(&parameters, &value).unwrap();
    let cache = GradCache::new(&all, loss).unwrap();
    let expected = f64::from(value.to_scalar::<f32>().unwrap());
    assert_eq!(cache.loss(), expected);
    let mut parts: Option<Gradients> = None;
    for (which, texts) in texts.iter().enumerate() {
        for part in [0..4, 4..8, 8..9] {
            let again = vectors(&texts.narrow(0, part.start, part.len()).unwrap());
            let surrogate = cache.surrogate(which, part, &again).unwrap();
            let passed = Gradients::backward(&parameters, &surrogate).unwrap();
            match &mut parts {
                Some(parts) => parts.accumulate(passed).unwrap(),
                None => parts = Some(passed),
            }
        }
    }
    let of = |gradients: &Gradients| {
        let gradient = gradients.get("weight").unwrap().unwrap();
        gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let whole = of(&whole);
    let most = whole.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (a, b) in whole.iter().zip(of(&parts.unwrap())) {
        assert!((a - b).abs() <= 1e-5 * most, "{a}, not {b}");
    }
}

#[test]
fn equal_vectors_have_finite_gradients() {
    let x = Var::from_slice(&[0f32, 0., 1., 2.], (2, 2), &device()).unwrap();
    let y = Tensor::new(&[[3f32, 4.], [5., -6.]], &device()).unwrap();
    for distance in [
        TripletDistance::Cosine,
        TripletDistance::Euclidean,
        TripletDistance::Manhattan,
    ] {
        let loss = triplet(&x, &x, &y, distance, 50.0).unwrap();
        let gradients = Gradients::backward(&[("x".to_string(), x.clone())], &loss).unwrap();
        let gradient = gradients.get("x").unwrap().unwrap();
        let values = gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(
            values.iter().all(|x| x.is_finite()),
            "{distance:?}: {values:?}"
        );
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let zeros = |shape: (usize, usize)| {
        Tensor::zeros(shape, candle_blocks::candle_core::DType::F32, &device()).unwrap()
    };
    let (a, b) = (zeros((3, 4)), zeros((2, 4)));
    let cosine = PairSimilarity::Cosine;
    for (result, word) in [
        (multiple_negatives(&a, &[], cosine, 1.0), "documents"),
        (
            multiple_negatives(&a, from_ref(&b), cosine, 1.0),
            "documents",
        ),
        (cosent(&a, &a, &[0.0], 1.0), "labels"),
        (
            triplet(&a, &a, &b, TripletDistance::Cosine, 1.0),
            "negatives",
        ),
        (margin_mse(&a, &a, from_ref(&a), &b), "margins"),
        (
            matryoshka(from_ref(&a), &[(5, 1.0)], |x| Ok(x[0].sum_all()?)),
            "dims",
        ),
        (
            matryoshka(from_ref(&a), &[], |x| Ok(x[0].sum_all()?)),
            "dims",
        ),
    ] {
        let refusal = message(result);
        assert!(refusal.contains(word), "no {word} in {refusal}");
    }
    let cache = GradCache::new(from_ref(&a), |x| Ok(x[0].sum_all()?)).unwrap();
    assert!(message(cache.surrogate(1, 0..1, &a)).contains("which"));
    assert!(message(cache.surrogate(0, 2..9, &a)).contains("no rows"));
    assert!(message(cache.surrogate(0, 0..2, &a)).contains("expected"));
}
