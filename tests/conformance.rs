//! The conformance table in weights/conformance.md: every committed checkpoint, in every type, against PyTorch.
//!
//! `CANDLE_BLOCKS_WRITE_CONFORMANCE=1 cargo test --release --features cli --test conformance` writes the
//! file. Without the variable the test demands that the file lists what there is, with as many stages and
//! gradients as are compared today, and that today's run passes. Ratios differ from machine to machine,
//! so that digits are not compared.

#[path = "shared/all.rs"]
mod all;
#[path = "shared/allowance.rs"]
mod allowance;
#[path = "shared/committed.rs"]
mod committed;
#[path = "shared/composed.rs"]
mod composed;
#[path = "shared/device.rs"]
mod device;
#[path = "shared/double.rs"]
mod double;
#[path = "shared/judged.rs"]
mod judged;
#[path = "shared/rehearsal.rs"]
mod rehearsal;
#[path = "shared/types.rs"]
mod types;
#[path = "shared/weights.rs"]
mod weights;
#[path = "shared/whole.rs"]
mod whole;

use std::{fmt::Write, fs, panic::AssertUnwindSafe, path::PathBuf};

use candle_blocks::{
    Checkpoint,
    candle_core::DType,
    trace,
    verify::{Comparison, Fixture, verify},
};
use committed::Committed;
use device::device;
use double::has_f64;
use types::computable;
use weights::{is_present, left_out, weights};
use whole::Whole;

const VARIABLE: &str = "CANDLE_BLOCKS_WRITE_CONFORMANCE";

/// The contents of one line in the table.
struct Row {
    /// Checkpoint, stack, type, how many stages and gradients: the same on every machine.
    fixed: [String; 5],
    stages: Worst,
    gradients: Option<Worst>,
    verdict: Result<&'static str, String>,
}

impl Row {
    /// Returns the cells of the table, with shares as decimal fractions.
    fn cells(&self) -> [String; HEADER.len()] {
        let [name, part, dtype, n_stages, n_gradients] = self.fixed.clone();
        let numbers = |worst: Option<&Worst>| match worst {
            Some(worst) => [worst.ratio, worst.share].map(|number| format!("{number:.2}")),
            None => ["-", "-"].map(str::to_string),
        };
        let [ratio, share] = numbers(Some(&self.stages));
        let [ratio_of_gradients, share_of_gradients] = numbers(self.gradients.as_ref());
        let verdict = self
            .verdict
            .as_ref()
            .map_or("FAIL", |verdict| verdict)
            .to_string();
        [
            name,
            part,
            dtype,
            n_stages,
            ratio,
            share,
            n_gradients,
            ratio_of_gradients,
            share_of_gradients,
            verdict,
        ]
    }
}

/// The worst of several comparisons.
struct Worst {
    /// Our largest error in proportion to PyTorch's.
    ratio: f64,
    /// The largest share of the tolerance.
    share: f64,
}

impl Worst {
    fn of(comparisons: &[&Comparison]) -> Option<Self> {
        let largest = |values: Vec<f64>| values.into_iter().max_by(f64::total_cmp);
        Some(Self {
            ratio: largest(comparisons.iter().filter_map(|c| c.ratio).collect())?,
            share: largest(comparisons.iter().map(|c| c.share_used).collect())?,
        })
    }
}

#[test]
fn the_committed_table_lists_every_checkpoint_and_todays_run_passes() {
    let stacks = all::all().into_iter().map(Subject::from);
    let wholes = whole::wholes().into_iter().map(Subject::from);
    let rows: Vec<Row> = stacks.chain(wholes).flat_map(rows).collect();
    let failures: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let failure = row.verdict.as_ref().err()?;
            Some(format!("{:?}\n{failure}", row.fixed))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    // A rehearsal lacks the types that its device lacks.
    if std::env::var_os(VARIABLE).is_some() && rehearsal::rehearsed().is_none() {
        fs::write(path(), table(&rows)).unwrap();
        return;
    }
    if !is_present("families") || !has_f64("the table in f64") {
        return left_out("the table is not held against a part of the checkpoints or types");
    }
    let text = fs::read_to_string(path()).unwrap();
    let listed: Vec<Vec<&str>> = text.lines().filter_map(fixed_cells).collect();
    let today: Vec<Vec<&str>> = rows
        .iter()
        .map(|row| row.fixed.iter().map(String::as_str).collect())
        .collect();
    let differing = listed.iter().zip(&today).find(|(a, b)| a != b);
    assert!(
        listed == today,
        "weights/conformance.md has {} lines, today's run {}; the first that differs: {differing:?}; set {VARIABLE}=1 to write it again",
        listed.len(),
        today.len(),
    );
}

/// Prints each row as it is computed, for a device that may end the process or leave little time: `benches/gpu/each.py`. The
/// variable `CANDLE_BLOCKS_ROWS=0/6/100` selects the first of six shards, from row number 100 on. A failure ends its row only.
#[test]
#[ignore = "benches/gpu/run.py calls it in shards"]
fn rows_one_by_one() {
    let requested = std::env::var("CANDLE_BLOCKS_ROWS").unwrap_or_else(|_| "0/1/0".to_string());
    let numbers: Vec<usize> = requested.split('/').map(|n| n.parse().unwrap()).collect();
    let &[shard, shards, from] = numbers.as_slice() else {
        panic!("CANDLE_BLOCKS_ROWS={requested}: expected SHARD/SHARDS/FIRST");
    };
    let stacks = all::all()
        .into_iter()
        .map(|stack| Box::new(move || Subject::from(stack)) as Open);
    let wholes = whole::wholes().into_iter();
    let wholes = wholes.map(|whole| Box::new(move || Subject::from(whole)) as Open);
    let of_shard = stacks
        .chain(wholes)
        .enumerate()
        .filter(|(index, _)| index % shards == shard);
    for (index, open) in of_shard {
        // At most four types.
        let first = 4 * index;
        if first + 3 < from {
            continue;
        }
        let subject = open();
        for (at, dtype) in (first..).zip(types_of(&subject)) {
            if at < from {
                continue;
            }
            let label = format!("{}\t{}\t{}", subject.name, subject.stack, dtype.as_str());
            println!("AT\t{at}\t{label}");
            match std::panic::catch_unwind(AssertUnwindSafe(|| row(&subject, dtype))) {
                Ok(row) => {
                    println!("ROW\t{}", row.cells().join("\t"));
                    row.verdict
                        .map_or_else(|report| println!("{report}"), |_| ());
                }
                Err(cause) => {
                    let text = cause
                        .downcast::<String>()
                        .map_or_else(|_| String::new(), |text| *text);
                    println!("PANIC\t{label}\t{}", text.replace('\n', " | "));
                }
            }
            // After some errors nothing runs in this process any more.
            device().synchronize().unwrap();
        }
    }
    println!("END");
}

type Open = Box<dyn FnOnce() -> Subject>;

#[test]
fn the_run_passes_as_on_cuda_and_on_metal() {
    rehearsal::rehearse(&["cuda", "metal"].map(|backend| (backend, &[][..])));
}

fn path() -> PathBuf {
    weights("conformance.md")
}

/// A stack in a checkpoint, or its whole model.
struct Subject {
    name: String,
    stack: String,
    checkpoint: Checkpoint,
    fixture: Fixture,
    gradient_allowance: f64,
}

impl From<Committed> for Subject {
    fn from(stack: Committed) -> Self {
        Self {
            stack: stack.part.map_or("-".to_string(), |part| part.to_string()),
            checkpoint: stack.open(),
            fixture: stack.fixture(),
            gradient_allowance: allowance::gradient_allowance(&stack),
            name: stack.name,
        }
    }
}

impl From<Whole> for Subject {
    fn from(whole: Whole) -> Self {
        Self {
            stack: "whole".to_string(),
            checkpoint: whole.open(),
            fixture: whole.fixture(),
            gradient_allowance: whole::of_whole(),
            name: whole.name,
        }
    }
}

/// A checkpoint in every type that its fixture can judge.
fn rows(subject: Subject) -> Vec<Row> {
    let types = types_of(&subject).into_iter();
    types.map(|dtype| row(&subject, dtype)).collect()
}

/// Returns the types that a fixture can judge: a fixture in half precision, only its own.
fn types_of(subject: &Subject) -> Vec<DType> {
    let types = match subject.fixture.dtype() {
        DType::F32 => vec![DType::F32, DType::F64, DType::BF16, DType::F16],
        half => vec![half],
    };
    computable(types, &subject.name)
}

fn row(subject: &Subject, dtype: DType) -> Row {
    let fixture = &subject.fixture;
    let native = fixture.dtype();
    let input = judged::input(fixture);
    let run = match fixture.gradients().is_empty() {
        true => trace::run,
        false => trace::run_backward,
    };
    let stages = run(&subject.checkpoint, &input, dtype, &device());
    let stages = stages.unwrap_or_else(|e| panic!("{} in {dtype:?}: {e}", subject.name));
    let report = verify(fixture, &stages.into_iter().collect());
    let (gradients, stages): (Vec<&Comparison>, Vec<&Comparison>) = report
        .comparisons
        .iter()
        .partition(|c| c.name.starts_with("grads."));
    let verdict = verdict(&stages, &gradients, [native, dtype], subject);
    Row {
        fixed: [
            subject.name.trim_start_matches("families/").to_string(),
            subject.stack.clone(),
            dtype.as_str().to_string(),
            stages.len().to_string(),
            gradients.len().to_string(),
        ],
        stages: Worst::of(&stages).unwrap_or_else(|| panic!("{}: no stages", subject.name)),
        gradients: Worst::of(&gradients),
        verdict: verdict.ok_or_else(|| report.to_string()),
    }
}

/// If a fixture in f32 judges half precision, our weights and inputs are rounded too, which PyTorch's were not. This adds
/// one more error as large as the run's own.
const ROUNDED_WEIGHTS: f64 = 2.0;
/// And twice that for gradients, which pass the rounded weights on through more products.
const HALF_GRADIENTS: f64 = 2.0;
/// A result that was rounded to f32 on the way is off by 2²⁹; see crates/layers/tests/layers/families.rs.
const CHANCE: f64 = 512.0;

/// The strongest statement that holds, if any.
fn verdict(
    stages: &[&Comparison],
    gradients: &[&Comparison],
    [native, dtype]: [DType; 2],
    subject: &Subject,
) -> Option<&'static str> {
    let is_measured = |c: &&Comparison| c.tolerance.is_some();
    if !stages.iter().chain(gradients).all(is_measured) {
        return None;
    }
    let within =
        |comparisons: &[&Comparison], share| comparisons.iter().all(|c| c.share_used <= share);
    if within(stages, 1.0) && within(gradients, 1.0) {
        return Some("within the rule");
    }
    if dtype == DType::F64 {
        let mut all = stages.iter().chain(gradients);
        if all.all(|c| c.ratio.is_some_and(|ratio| ratio < CHANCE)) {
            return Some("nothing rounded to f32");
        }
        // BLOOM writes √(2/π) with eight digits: 1e-9, which f32 does not see.
        let is_bloom = subject.name.starts_with("families/bloom");
        return is_bloom.then_some("as exact as its constants of eight digits");
    }
    let (allowance, of_gradients) = match native == dtype {
        true => (1.0, subject.gradient_allowance),
        false => (ROUNDED_WEIGHTS, ROUNDED_WEIGHTS * HALF_GRADIENTS),
    };
    let is_allowed = within(stages, allowance) && within(gradients, of_gradients);
    is_allowed.then_some("within the allowance")
}

/// Returns the cells of a line that are the same on every machine; `None` for other text.
fn fixed_cells(line: &str) -> Option<Vec<&str>> {
    let cells: Vec<&str> = line.strip_prefix("| ")?.split(" | ").collect();
    let is_row = cells.len() == HEADER.len() && ![HEADER[0], "---"].contains(&cells[0]);
    is_row.then(|| vec![cells[0], cells[1], cells[2], cells[3], cells[6]])
}

const HEADER: [&str; 10] = [
    "checkpoint",
    "stack",
    "type",
    "stages",
    "worst ratio",
    "of allowed",
    "gradients",
    "worst ratio",
    "of allowed",
    "verdict",
];

const INTRODUCTION: &str = "\
# Conformance

This page is for readers who want to know how close a model family comes to PyTorch. It lists every committed checkpoint; a test writes and checks it (`tests/conformance.rs`). A stage is a
feed-forward's input or output, a block's output, or the stack's output. A gradient is the gradient of a parameter or an input. *Whole* is
the model from its input to its logits: its stages are embeddings, last hidden states, pooler output and logits, and its gradients are those
of the parameters outside the blocks.

*Ratio*: our largest error against float64, divided by PyTorch's own; below 1, our result is more exact. *Of
allowed*: our error as a share of the bound, which is twice PyTorch's error plus four ulp of the tensor's largest value. The typical error
has its own bound, and the table shows the larger share ([tolerance.md](../docs/tolerance.md)). If PyTorch ran in another type, its error is scaled by the ratio of the machine epsilons.

*Allowances*. In f32 every result is within the rule, except gradients for `gemma3_text` (and for `modernbert` with the portable
kernels), which may use twice their bound: PyTorch's error is small by luck there, and its own second attention
implementation exceeds the rule as often. If PyTorch ran in f32 and our run is in half precision, stages may use twice their
bound and gradients four times, because our weights and inputs are rounded and PyTorch's were not. `tiny-bert-bf16` and `tiny-gpt2-f16` are compared with PyTorch's own runs in half precision. In f64 there is no more exact
result to compare with; the test shows that nothing was rounded to f32 (an error of 2²⁹; the test's limit is 2⁹).

*Devices*. An H200 computed all rows once: four in f32 are beyond their bounds there ([record](../benches/record/2026-11-27-h200.md)).

";

fn table(rows: &[Row]) -> String {
    let mut text = INTRODUCTION.to_string();
    let mut line = |cells: &[&str]| writeln!(text, "| {} |", cells.join(" | ")).unwrap();
    line(&HEADER);
    line(&["---"; HEADER.len()]);
    for row in rows {
        let cells = row.cells();
        let share = |cell: &String| match cell.parse::<f64>() {
            Ok(share) => format!("{:.0} %", 100.0 * share),
            Err(_) => cell.clone(),
        };
        let (stages, gradients) = (share(&cells[5]), share(&cells[8]));
        let of: Vec<&str> = cells.iter().map(String::as_str).collect();
        let [
            name,
            part,
            dtype,
            n_stages,
            ratio,
            _,
            n_gradients,
            of_gradients,
            _,
            verdict,
        ] = of[..]
        else {
            unreachable!("a row has ten cells");
        };
        line(&[
            name,
            part,
            dtype,
            n_stages,
            ratio,
            &stages,
            n_gradients,
            of_gradients,
            &gradients,
            verdict,
        ]);
    }
    text
}
