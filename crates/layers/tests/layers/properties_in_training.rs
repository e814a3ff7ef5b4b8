//! Properties of every block in training: evaluation uses no randomness, seeds reproduce results, and candle's containers
//! pass the flag on.

use std::fs;

use candle_blocks::{
    Activation, CheckpointOptions, Dropout, DropoutSource, SublayerNorm, Weights,
    candle_core::{DType, Device, Module, ModuleT, Tensor},
    candle_nn,
    layers::BlockFeedForward,
};

use crate::{
    device::device,
    numbers::bits,
    subject::{Subject, n_different, subjects},
};

/// The stack in training, drawing from `source`.
fn train(s: &Subject, x: &Tensor, source: &DropoutSource) -> Tensor {
    let mut stack = s.stack.clone();
    stack.set_dropout_source(source);
    stack.forward_t(x, true).unwrap()
}

#[test]
fn evaluation_draws_no_random_numbers() {
    let draw = |source: &DropoutSource| {
        let ones = Tensor::ones(100, DType::F32, &Device::Cpu).unwrap();
        let dropout = Dropout::new(0.5, source.clone()).unwrap();
        bits(&dropout.forward_t(&ones, true).unwrap())
    };
    let sources: [fn() -> DropoutSource; 2] =
        [|| DropoutSource::seeded(7), || DropoutSource::numpy(7)];
    for s in subjects() {
        for source in sources {
            let (used, fresh) = (source(), source());
            let mut stack = s.stack.clone();
            stack.set_dropout_source(&used);
            let first = stack.forward(&s.input(1)).unwrap();
            let second = stack.forward_t(&s.input(1), false).unwrap();
            s.assert_bits("evaluation", &second, &first);
            assert_eq!(draw(&used), draw(&fresh), "{}", s.label);
            // The measure sees draws: training makes them.
            train(&s, &s.input(1), &used);
            assert_ne!(draw(&used), draw(&fresh), "{}", s.label);
        }
    }
}

#[test]
fn training_repeats_with_its_seed_and_changes_with_another() {
    for s in subjects() {
        let x = s.input(1);
        let run = |seed| train(&s, &x, &DropoutSource::seeded(seed));
        s.assert_bits("the same seed", &run(1), &run(1));
        assert_ne!(n_different(&run(1), &run(2)), 0, "{}", s.label);
        let evaluation = s.stack.forward(&x).unwrap();
        assert_ne!(n_different(&run(1), &evaluation), 0, "{}", s.label);
        // One stream is drawn from on and on.
        let source = DropoutSource::numpy(3);
        let (first, second) = (train(&s, &x, &source), train(&s, &x, &source));
        assert_ne!(n_different(&first, &second), 0, "{}", s.label);
    }
}

#[test]
fn dropout_of_probability_zero_is_evaluation() {
    let folder = crate::folder::folder();
    for s in subjects() {
        let directory = s.checkpoint.files().directory();
        let text = fs::read_to_string(directory.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (key, value) in config.as_object_mut().unwrap() {
            if key.ends_with("dropout_prob") || key.ends_with("pdrop") {
                *value = 0.0.into();
            }
        }
        let path = folder.path().join("config.json");
        fs::write(&path, config.to_string()).unwrap();
        let options = CheckpointOptions::default().config(path);
        let checkpoint = options.open(directory).unwrap();
        let mut stack = checkpoint
            .load(Weights::Dense(s.dtype, &device()))
            .stack()
            .unwrap();
        stack.set_dropout_source(&DropoutSource::seeded(1));
        let x = s.input(1);
        let trained = stack.forward_t(&x, true).unwrap();
        s.assert_bits("training", &trained, &s.stack.forward(&x).unwrap());
    }
}

#[test]
fn layers_stand_in_candles_own_containers() {
    for s in subjects() {
        let block = &s.stack.blocks()[0];
        let (x, norm) = (s.input(1), block.mixer().norm());
        let (SublayerNorm::Pre(norm) | SublayerNorm::Post(norm)) = norm else {
            panic!("these families have one norm per sublayer");
        };
        let BlockFeedForward::Dense(feed_forward) = block.feed_forward().inner() else {
            panic!("these families have one feed-forward per block");
        };
        let (up, down) = (feed_forward.up(), feed_forward.down());

        // `Module`s in a `Sequential`, and what has dropout as a function.
        let evaluated = block.clone();
        let sequence = candle_nn::seq()
            .add(norm.clone())
            .add(up.clone())
            .add(feed_forward.activation())
            .add(down.clone())
            .add_fn(move |x| evaluated.forward(x));
        let by_hand = feed_forward.forward(&norm.forward(&x).unwrap()).unwrap();
        let by_hand = block.forward(&by_hand).unwrap();
        s.assert_bits("seq", &sequence.forward(&x).unwrap(), &by_hand);

        // Generic code over `ModuleT` takes them all, and passes `train` on.
        let dropout = Dropout::new(0.5, DropoutSource::seeded(1)).unwrap();
        let chain: Vec<Box<dyn ModuleT>> = vec![
            Box::new(norm.clone()),
            Box::new(feed_forward.clone()),
            Box::new(block.mixer().clone()),
            Box::new(block.mixer().inner().attention().unwrap().clone()),
            Box::new(block.clone()),
            Box::new(s.stack.clone()),
            Box::new(Activation::Gelu),
            Box::new(dropout),
        ];
        let run = |train| {
            let mut layers = chain.iter();
            layers.try_fold(x.clone(), |x, layer| layer.forward_t(&x, train))
        };
        let (first, second) = (run(false).unwrap(), run(false).unwrap());
        s.assert_bits("evaluation", &first, &second);
        assert_ne!(n_different(&run(true).unwrap(), &first), 0, "{}", s.label);
        s.assert_bits("apply", &x.apply(norm).unwrap(), &norm.forward(&x).unwrap());
        let applied = x.apply_t(block, false).unwrap();
        s.assert_bits("apply_t", &applied, &block.forward(&x).unwrap());
    }
}
