//! Whatever a packed layer is given, it answers as the layer it was made from: the same rows, or an error. Never a panic.

use candle_blocks::{
    AttentionMask, ForwardContext, Precision, StackConfig, TransformerBlock,
    candle_core::{Device, Result, Tensor},
};

use crate::{
    kinds::{self, MEMORY},
    refused::{outcome, refusal},
    small::{self, WIDTH, block, made, numbers, stack},
};

fn configurations() -> [(&'static str, StackConfig); 6] {
    [
        ("encoder", small::encoder()),
        ("decoder", small::decoder()),
        ("falcon", kinds::falcon()),
        ("cross decoder", kinds::cross_decoder()),
        ("cross alibi", kinds::cross_alibi()),
        ("experts", kinds::experts()),
    ]
}

/// A stack's input.
#[derive(Clone, Debug)]
struct Request {
    x: Vec<usize>,
    keep: Option<Vec<usize>>,
    additive: Option<Vec<usize>>,
    positions: Option<Vec<usize>>,
    memory: Option<Vec<usize>>,
    memory_keep: Option<Vec<usize>>,
    memory_additive: Option<Vec<usize>>,
}

impl Request {
    /// Fits every stack.
    fn plain() -> Self {
        Self {
            x: vec![2, 5, WIDTH],
            keep: None,
            additive: None,
            positions: None,
            memory: Some(vec![2, 4, MEMORY]),
            memory_keep: None,
            memory_additive: None,
        }
    }

    fn context(&self) -> Result<ForwardContext> {
        let mask = |keep: &Option<Vec<usize>>, additive: &Option<Vec<usize>>| -> Result<_> {
            let mask = match keep {
                // The first sequence is padded at its end; a single one is dropped entirely.
                Some(shape) => AttentionMask::padding(&marks(shape))?,
                None => AttentionMask::none(),
            };
            Ok(match additive {
                Some(shape) => mask.with_additive(numbers(shape, 3)),
                None => mask,
            })
        };
        let mut context = ForwardContext::evaluation().with_mask(mask(&self.keep, &self.additive)?);
        if let Some(shape) = &self.positions {
            let ids = (0..shape.iter().product::<usize>() as i64).map(|i| i % 11);
            let ids = Tensor::from_vec(ids.collect(), shape.as_slice(), &Device::Cpu)?;
            context = context.with_position_ids(&ids)?;
        }
        Ok(match &self.memory {
            Some(shape) => {
                let mask = mask(&self.memory_keep, &self.memory_additive)?;
                context.with_encoder_output(numbers(shape, 5), mask)
            }
            None => context,
        })
    }
}

/// Returns a mask: the first sequence is padded at its end; a single one is dropped entirely.
fn marks(shape: &[usize]) -> Tensor {
    let (batch, seq) = (shape[0], shape[1]);
    let kept = |b| {
        if batch == 1 {
            0
        } else {
            seq.saturating_sub(2 * usize::from(b == 0))
        }
    };
    let marks = (0..batch).flat_map(|b| (0..seq).map(move |s| u8::from(s < kept(b))));
    Tensor::from_vec(marks.collect::<Vec<_>>(), shape, &Device::Cpu).unwrap()
}

/// Every request in which one or two things are odd.
fn requests() -> Vec<Request> {
    let some = |shapes: &[&[usize]]| -> Vec<Option<Vec<usize>>> {
        let shapes = shapes.iter().map(|shape| Some(shape.to_vec()));
        shapes.chain([None]).collect()
    };
    let inputs: [&[usize]; 9] = [
        &[2, 5, WIDTH],
        &[0, 5, WIDTH],
        &[2, 0, WIDTH],
        &[1, 1, WIDTH],
        &[5, WIDTH],
        &[WIDTH],
        &[2, 5, WIDTH + 1],
        &[1, 2, 5, WIDTH],
        &[],
    ];
    let masks = some(&[&[2, 5], &[1, 5], &[2, 4], &[2, 0], &[0, 5], &[1, 1]]);
    let additives = some(&[
        &[2, 4, 5, 5],
        &[5],
        &[2, 1, 1, 5],
        &[2, 1, 5, 4],
        &[1, 1, 1, 5, 5],
        &[],
    ]);
    let positions = some(&[&[1, 5], &[2, 5], &[3, 5], &[2, 4], &[1, 0]]);
    let memories = some(&[
        &[2, 4, MEMORY],
        &[2, 0, MEMORY],
        &[2, 4, MEMORY + 1],
        &[2, 5, 2 * MEMORY],
        &[1, 4, MEMORY],
        &[0, 4, MEMORY],
        &[4, MEMORY],
        &[MEMORY],
    ]);
    let memory_masks = some(&[&[2, 4], &[1, 4], &[2, 5]]);
    let memory_additives = some(&[&[2, 1, 1, 4], &[5, 4], &[2, 1, 5, 5]]);
    let mut requests = Vec::new();
    for x in inputs {
        let plain = Request {
            x: x.to_vec(),
            ..Request::plain()
        };
        let mut add = |change: &dyn Fn(&mut Request)| {
            let mut request = plain.clone();
            change(&mut request);
            requests.push(request);
        };
        for keep in &masks {
            add(&|request| request.keep = keep.clone());
        }
        for additive in &additives {
            add(&|request| request.additive = additive.clone());
        }
        for positions in &positions {
            add(&|request| request.positions = positions.clone());
        }
        for memory in &memories {
            for keep in &memory_masks {
                add(&|request| {
                    request.memory = memory.clone();
                    request.memory_keep = keep.clone();
                });
            }
            for additive in &memory_additives {
                add(&|request| {
                    request.memory = memory.clone();
                    request.memory_additive = additive.clone();
                });
            }
        }
    }
    requests
}

/// Why two answers differ, in the rows that are kept.
fn difference(request: &Request, layer: &Tensor, packed: &Tensor) -> Option<String> {
    if layer.dims() != packed.dims() {
        return Some(format!("shapes {:?} and {:?}", layer.dims(), packed.dims()));
    }
    let rows = |y: &Tensor| y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (layer, packed) = (rows(layer), rows(packed));
    let keep = request
        .keep
        .as_ref()
        .map(|shape| marks(shape).flatten_all().unwrap());
    let keep = keep.map(|keep| keep.to_vec1::<u8>().unwrap());
    let is_kept = |at: usize| keep.as_ref().is_none_or(|keep| keep[at / WIDTH] == 1);
    let off = |at: &usize| is_kept(*at) && (layer[*at] - packed[*at]).abs() > 2e-5;
    let at = (0..layer.len()).find(off)?;
    Some(format!("{} and {} at {at}", layer[at], packed[at]))
}

#[test]
fn a_packed_stack_answers_odd_requests_as_the_layers_do() {
    let mut failures = Vec::new();
    let mut answered = 0;
    for (name, config) in configurations() {
        let layer = stack(&config);
        let packed = layer.clone().pack(Precision::F32).unwrap();
        for request in requests() {
            let Ok(context) = request.context() else {
                continue; // refused before any layer sees it
            };
            let x = numbers(&request.x, 1);
            let of_layer = outcome(|| layer.forward_with(&x, &context));
            let of_packed = outcome(|| packed.forward_with(&x, &context));
            let problem = match (of_layer, of_packed) {
                (Ok(layer), Ok(packed)) => {
                    answered += 1;
                    difference(&request, &layer, &packed)
                }
                (Err(layer), Err(packed)) if layer != "panic" && packed != "panic" => None,
                (layer, packed) => {
                    let word = |found: std::result::Result<_, String>| match found {
                        Ok(_) => "an answer".to_string(),
                        Err(word) => word,
                    };
                    Some(format!("layer: {}; packed: {}", word(layer), word(packed)))
                }
            };
            failures.extend(problem.map(|problem| format!("{name} {request:?}\n    {problem}")));
        }
    }
    assert!(answered > 100);
    assert!(
        failures.is_empty(),
        "{}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn one_packed_block_and_its_parts_refuse_what_does_not_fit() {
    let mut config = block(candle_blocks::AttentionConfig::new(WIDTH, 2).unwrap());
    config.cross_attention = Some(
        config
            .attention()
            .unwrap()
            .clone()
            .with_encoder_width(MEMORY),
    );
    let layer = made(|vb| TransformerBlock::new(&config, vb));
    let packed = layer.clone().pack(Precision::F32).unwrap();
    let cross = layer.cross_attention().unwrap().inner();
    let message = refusal("keys of another width", || cross.pack(Precision::F32));
    assert!(message.contains("pack_cross"), "{message}");
    let cross = cross.pack_cross(Precision::F32).unwrap();
    let feed_forward = layer.feed_forward().pack(Precision::F32).unwrap();
    for shape in [&[2, 5, WIDTH + 1] as &[usize], &[1, 1, 5, WIDTH], &[0], &[]] {
        let x = numbers(shape, 1);
        let memory = numbers(&[2, 4, MEMORY], 2);
        let context =
            ForwardContext::evaluation().with_encoder_output(memory, AttentionMask::none());
        refusal("block", || packed.forward_with(&x, &context));
        refusal("attention", || {
            packed
                .mixer()
                .inner()
                .attention()
                .unwrap()
                .forward_with(&x, &context)
        });
        refusal("cross-attention", || cross.forward_with(&x, &context));
        if shape.len() != 4 {
            refusal("feed-forward", || feed_forward.forward(&x));
        }
    }
    let x = numbers(&[2, 5, WIDTH], 1);
    refusal("no memory", || packed.forward(&x));
}

#[test]
fn a_view_without_elements_may_begin_anywhere() {
    let x = numbers(&[0, 5, WIDTH], 1).narrow(1, 2, 3).unwrap();
    for (name, config) in configurations()
        .into_iter()
        .filter(|(name, _)| !name.contains("cross"))
    {
        let layers = stack(&config);
        let packed = layers.clone().pack(Precision::F32).unwrap();
        let answers = [
            outcome(|| layers.forward(&x)),
            outcome(|| packed.forward(&x)),
        ];
        for answer in answers {
            assert_eq!(answer.unwrap().dims(), [0, 3, WIDTH], "{name}");
        }
    }
}
