//! Measures attention's speed. Run on an idle machine:
//! `cargo test --release -p candle-blocks-kernels attention_in_operations -- --ignored --nocapture`

use std::ops::Range;

use super::tests::{Way, ways};
use super::{
    Heads, KeyValue, KeyValuePanels, OperandFormat, PanelShape, Scoring, Sequences, Shape, attend,
};
use crate::reference::{on, random};
use crate::{products::formats::bandwidth::read_all, timing::least, vectors::Isa};

/// Returns the bytes per second at which `threads` threads read `len` f32 values.
fn reading(isa: Isa, len: usize, threads: usize) -> f64 {
    let data: Vec<f32> = random(len, 0.0, 1.0, 3);
    let seconds = least(200, || read_all(isa, &data, threads));
    (len * 4) as f64 / seconds
}

struct Case {
    name: &'static str,
    /// Sequence count, and queries per sequence.
    sizes: (usize, usize),
    /// Query head count, key/value head count, and dimensions per head.
    heads: (usize, usize, usize),
    keys: usize,
    visible: Visible,
    memory: Memory,
}

#[derive(Clone, Copy, PartialEq)]
enum Visible {
    All,
    Causal,
}

#[derive(Clone, Copy, PartialEq)]
enum Memory {
    Projected,
    Packed,
}

fn measure(way: Way, case: &Case, threads: usize) -> (f64, f64) {
    let keys = case.keys;
    let (batch, queries) = case.sizes;
    let (n_heads, n_kv_heads, head_dim) = case.heads;
    let sequences = |seq| Sequences::Equal { batch, seq };
    let shape = Shape {
        queries: sequences(queries),
        n_heads,
        n_kv_heads,
        head_dim,
    };
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let row_stride = q_width + 2 * kv_width;
    let data: Vec<f32> = random(batch * keys * row_stride, 0.0, 1.0, 1);
    let heads = |offset| Heads {
        data: &data,
        row_stride,
        offset,
    };
    let (key, value) = (heads(q_width), heads(q_width + kv_width));
    let first = keys - queries;
    let causal = |_, query: usize| 0..first + query + 1;
    let all = |_: usize, _: usize| 0..keys;
    let reach: &(dyn Fn(usize, usize) -> Range<usize> + Sync) = match case.visible {
        Visible::All => &all,
        Visible::Causal => &causal,
    };
    let scoring = Scoring {
        scale: (head_dim as f32).sqrt().recip(),
        soft_cap: None,
        relative: None,
        biases: &[],
        sinks: None,
        keep: None,
        reach,
        origins: None,
    };
    let panel_shape = PanelShape {
        isa: way.isa,
        stored: way.stored,
        n_kv_heads,
        head_dim,
    };
    let mut panels = vec![KeyValuePanels::new(panel_shape); batch];
    let key_value = match case.memory {
        Memory::Projected => KeyValue::Projected {
            keys: sequences(keys),
            key,
            value,
        },
        Memory::Packed => {
            KeyValuePanels::append_all(&mut panels, on(way.isa, 1), sequences(keys), key, value);
            KeyValue::Packed(&panels)
        }
    };
    let mut out = vec![0.0; batch * queries * q_width];
    let pairs: usize = (0..queries).map(|query| reach(0, query).len()).sum();
    let operations = (batch * n_heads * pairs * head_dim * 4) as f64;
    let times = (3e9 / operations) as usize;
    let seconds = least(times.clamp(20, 20000), || {
        let cpu = on(way.isa, threads);
        attend(
            cpu,
            way.stored,
            &shape,
            &scoring,
            heads(0),
            key_value,
            &mut out,
        );
    });
    let size = match way.stored {
        OperandFormat::F32 => 4,
        OperandFormat::Bf16 => 2,
    };
    let bytes = (batch * kv_width * keys * 2 * size) as f64;
    (operations / seconds / threads as f64, bytes / seconds)
}

#[test]
#[ignore = "a measurement: needs an idle machine and a minute"]
fn attention_in_operations_per_second() {
    use Memory::*;
    use Visible::*;
    macro_rules! cases {
        ($($name:literal $batch:literal $queries:literal of $keys:literal, $heads:expr, $visible:ident $memory:ident;)*) => {
            [$(Case {
                name: $name,
                sizes: ($batch, $queries),
                heads: $heads,
                keys: $keys,
                visible: $visible,
                memory: $memory,
            }),*]
        };
    }
    let cases = cases! {
        "MiniLM 1x16" 1 16 of 16, (12, 12, 32), All Projected;
        "MiniLM 4x32" 4 32 of 32, (12, 12, 32), All Projected;
        "MiniLM 1x128" 1 128 of 128, (12, 12, 32), All Projected;
        "MiniLM 8x128" 8 128 of 128, (12, 12, 32), All Projected;
        "MiniLM 1x512" 1 512 of 512, (12, 12, 32), All Projected;
        "BERT 1x128" 1 128 of 128, (12, 12, 64), All Projected;
        "BERT 1x512" 1 512 of 512, (12, 12, 64), All Projected;
        "GPT-2 1x512" 1 512 of 512, (12, 12, 64), Causal Projected;
        "Llama 64 1x512" 1 512 of 512, (32, 8, 64), Causal Projected;
        "Llama 128 1x512" 1 512 of 512, (32, 8, 128), Causal Projected;
        "Llama 64, 1 of 512" 1 1 of 512, (32, 8, 64), Causal Packed;
        "Llama 128, 1 of 512" 1 1 of 512, (32, 8, 128), Causal Packed;
        "Llama 128, 1 of 4096" 1 1 of 4096, (32, 8, 128), Causal Packed;
        "GPT-2, 1 of 512" 1 1 of 512, (12, 12, 64), Causal Packed;
        "GPT-2, 1 of 4096" 1 1 of 4096, (12, 12, 64), Causal Packed;
    };
    for way in ways() {
        let isa = way.isa;
        println!("{way}: GFLOP/s per thread, GB/s of keys and values");
        for case in &cases {
            for threads in [1, 2] {
                let (operations, bytes) = measure(way, case, threads);
                print!(
                    "  {:20} {threads}: {:6.1} {:6.1}",
                    case.name,
                    1e-9 * operations,
                    1e-9 * bytes
                );
                if case.memory == Packed {
                    let (_, n_kv_heads, head_dim) = case.heads;
                    let len = 2 * case.keys * n_kv_heads * head_dim;
                    print!(" of {:.1}", 1e-9 * reading(isa, len, threads));
                }
                println!();
            }
        }
    }
}
