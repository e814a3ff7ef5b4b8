//! Properties of every block: packed, cached, traced and whole, it is the same function.
//!
//! The reference is the layer in f64, which uses no f32 kernel.

use candle_blocks::{
    ForwardContext, Precision, Stack, StackConfig,
    candle_core::{DType, Device, Result, Tensor, Var},
};

use super::{Draws, Request, has_alibi, made, made_with_parameters};

/// A property either does not apply to a case, holds, or fails with a reason.
pub type Property = fn(&StackConfig, &Request) -> Holds;
pub type Holds = std::result::Result<bool, String>;

fn stack(config: &StackConfig, dtype: DType) -> Stack {
    stack_on(&Device::Cpu, config, dtype)
}

fn stack_on(device: &Device, config: &StackConfig, dtype: DType) -> Stack {
    made(device, dtype, |vb| Stack::new(config, vb))
}

/// Returns the f64 stack's output after each input and parameter was rounded by one f32 unit.
fn of_roundings(config: &StackConfig, request: &Request, seed: u64) -> Result<Tensor> {
    let (stack, parameters) =
        made_with_parameters(&Device::Cpu, DType::F64, |vb| Stack::new(config, vb));
    for (i, (_, parameter)) in parameters.iter().enumerate() {
        parameter.set(&nearby(parameter, seed + 1 + i as u64))?;
    }
    stack.forward_with(&nearby(&request.x(), seed), &request.context(DType::F64))
}

/// The number of roundings tried before a case counts as wrong.
const ROUNDINGS: u64 = 16;

/// Returns values that are each one f32 rounding larger or smaller.
fn nearby(x: &Tensor, seed: u64) -> Tensor {
    let sign = Draws::new(seed).tensor(x.dims()).sign().unwrap();
    let factor = sign.affine(f64::from(f32::EPSILON), 1.0).unwrap();
    (x * factor).unwrap()
}

/// Returns the largest difference over the kept rows, relative to the largest value.
fn difference(request: &Request, ours: &Tensor, theirs: &Tensor) -> f64 {
    let rows = |y: &Tensor| -> Vec<f64> {
        let y = y.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
        y.to_vec1().unwrap()
    };
    assert_eq!(ours.dims(), theirs.dims());
    let width = *ours.dims().last().unwrap();
    let (ours, theirs) = (rows(ours), rows(theirs));
    let kept = |at: &usize| {
        request
            .keep
            .as_ref()
            .is_none_or(|keep| keep[at / width] == 1)
    };
    let largest = theirs
        .iter()
        .fold(1.0f64, |largest, x| largest.max(x.abs()));
    let differences = (0..ours.len()).filter(kept);
    differences
        .map(|at| (ours[at] - theirs[at]).abs() / largest)
        .fold(
            0.0,
            |worst, x| if x.is_nan() || x > worst { x } else { worst },
        )
}

fn words<T>(result: Result<T>) -> std::result::Result<T, String> {
    result.map_err(|error| error.to_string())
}

pub fn a_packed_stack_is_its_layers(config: &StackConfig, request: &Request) -> Holds {
    let exact = stack(config, DType::F64);
    let x = request.x();
    let expected = words(exact.forward_with(&x, &request.context(DType::F64)))?;
    let layers = stack(config, DType::F32);
    let x = x.to_dtype(DType::F32).unwrap();
    let context = request.context(DType::F32);
    let plain = words(layers.forward_with(&x, &context))?;
    let packed = words(layers.pack(Precision::F32))?;
    let packed = words(packed.forward_with(&x, &context))?;
    let [plain, packed] = [&plain, &packed].map(|y| difference(request, y, &expected));
    let mut most = plain;
    // Packed layers have the CPU's kernels, where one plus a negative `erf` cancels. Layers as on a device do not cancel there.
    let least = match std::env::var_os("CANDLE_BLOCKS_REHEARSE") {
        Some(_) => 5e-5,
        None => 2e-6,
    };
    let is_held = |most: f64| packed <= 3.0 * most + least;
    // An f32 computation may err as much as the exact function of rounded inputs. A search found cases in which one
    // rounding's error was twenty times another's.
    for seed in 0..ROUNDINGS {
        if is_held(most) {
            break;
        }
        let rounded = words(of_roundings(config, request, 1000 * seed))?;
        most = most.max(difference(request, &rounded, &expected));
    }
    if !is_held(most) {
        return Err(format!(
            "plain {plain:e}, with roundings {most:e}, packed {packed:e}"
        ));
    }
    Ok(is_conditioned(plain))
}

/// Returns whether f32 can compute a case at all: a norm of outputs near 0 amplifies rounding without limit. The tests' own
/// cases are all computable, but a search finds others.
fn is_conditioned(plain: f64) -> bool {
    plain < 1e-4
}

/// The documentation promises this for rows that no kept row depends on.
pub fn padding_is_zero_in_what_a_packed_stack_returns(
    config: &StackConfig,
    request: &Request,
) -> Holds {
    if !request.padding_is_left_out(config) {
        return Ok(false);
    }
    let packed = words(stack(config, DType::F32).pack(Precision::F32))?;
    let x = request.x().to_dtype(DType::F32).unwrap();
    let y = words(packed.forward_with(&x, &request.context(DType::F32)))?;
    let rows = y.flatten_to(1).unwrap().to_vec2::<f32>().unwrap();
    let marks = request.keep.as_ref().unwrap();
    let is_zero = |row: &Vec<f32>| row.iter().all(|&value| value == 0.0);
    let wrong = rows
        .iter()
        .zip(marks)
        .position(|(row, &mark)| mark == 0 && !is_zero(row));
    wrong.map_or(Ok(true), |at| Err(format!("row {at} is not zero")))
}

pub fn observation_changes_nothing(config: &StackConfig, request: &Request) -> Holds {
    let layers = stack_on(request.device(), config, DType::F32);
    let x = request.x().to_dtype(DType::F32).unwrap();
    let context = request.context(DType::F32);
    let mut n = 0;
    let whole = words(layers.forward_with(&x, &context))?;
    let watched = words(layers.observe(&x, &context, |_, _| {
        n += 1;
        Ok(())
    }))?;
    let difference = difference(request, &watched, &whole);
    if n != config.layers.len() || difference != 0.0 {
        return Err(format!("{difference:e} after {n} layers"));
    }
    let request = &request.on(&Device::Cpu);
    let (x, context) = (request.x(), request.context(DType::F32));
    let x = x.to_dtype(DType::F32).unwrap();
    let packed = words(stack(config, DType::F32).pack(Precision::F32))?;
    let whole = words(packed.forward_with(&x, &context))?;
    let watched = words(packed.observe(&x, &context, |_, _| Ok(())))?;
    let difference = self::difference(request, &watched, &whole);
    if difference != 0.0 {
        return Err(format!("packed: {difference:e}"));
    }
    Ok(true)
}

pub fn a_sequence_in_chunks_is_the_sequence(config: &StackConfig, request: &Request) -> Holds {
    if !request.can_be_cached(config) {
        return Ok(false);
    }
    let layers = stack_on(request.device(), config, DType::F64);
    let x = request.x();
    let context = request.context(DType::F64);
    let whole = words(layers.forward_with(&x, &context))?;
    let mut cache = layers.new_cache();
    let in_chunks = request.chunks(&x, DType::F64, |x: &Tensor, context: &ForwardContext| {
        words(layers.forward_cached(x, context, &mut cache))
    })?;
    let difference = difference(request, &in_chunks, &whole);
    if difference.is_nan() || difference > 1e-12 {
        return Err(format!("{difference:e}"));
    }
    let packed = words(stack(config, DType::F32).pack(Precision::F32))?;
    let request = &request.on(&Device::Cpu);
    let x = request.x().to_dtype(DType::F32).unwrap();
    let whole = words(packed.forward_with(&x, &request.context(DType::F32)))?;
    let mut cache = packed.new_cache();
    let in_chunks = request.chunks(&x, DType::F32, |x: &Tensor, context: &ForwardContext| {
        words(packed.forward_cached(x, context, &mut cache))
    })?;
    let difference = self::difference(request, &in_chunks, &whole);
    // Linear biases count from the last key, so that their rounding depends on the chunk.
    let bound = if has_alibi(config) { 1e-5 } else { 0.0 };
    if difference.is_nan() || difference > bound {
        return Err(format!("packed: {difference:e}"));
    }
    Ok(true)
}

pub fn a_sequence_has_the_same_bits_alone_and_before_padding(
    config: &StackConfig,
    request: &Request,
) -> Holds {
    let Some((alone, padded)) = request.alone_and_padded(config) else {
        return Ok(false);
    };
    let device = request.device();
    let layers = stack_on(device, config, DType::F32);
    let packed = words(stack(config, DType::F32).pack(Precision::F32))?;
    let run = |packs: bool, request: &Request| {
        let request = match packs {
            true => &request.on(&Device::Cpu),
            false => request,
        };
        let x = request.x().to_dtype(DType::F32).unwrap();
        let context = request.context(DType::F32);
        words(match packs {
            true => packed.forward_with(&x, &context),
            false => layers.forward_with(&x, &context),
        })
    };
    for packs in [false, true] {
        let whole = run(packs, &alone)?;
        let seq = whole.dims()[1];
        let part = run(packs, &padded)?.narrow(0, 0, 1).unwrap();
        let part = part.narrow(1, 0, seq).unwrap();
        let difference = difference(&alone, &part, &whole);
        // A GPU's library may sum in another order for another number of rows.
        let bound = if packs || device.is_cpu() { 0.0 } else { 1e-5 };
        if difference.is_nan() || difference > bound {
            return Err(format!("packed {packs}: {difference:e}"));
        }
    }
    Ok(true)
}

pub fn half_types_are_the_function_rounded(config: &StackConfig, request: &Request) -> Holds {
    let exact = stack(config, DType::F64);
    let x = request.x().to_dtype(DType::F16).unwrap();
    let wide = x.to_dtype(DType::F64).unwrap();
    let expected = words(exact.forward_with(&wide, &request.context(DType::F64)))?;
    let packed = words(stack(config, DType::F32).pack(Precision::F32))?;
    let ours = words(packed.forward_with(&x, &request.context(DType::F32)))?;
    let plain = stack(config, DType::F32);
    let single = wide.to_dtype(DType::F32).unwrap();
    let plain = words(plain.forward_with(&single, &request.context(DType::F32)))?;
    let [plain, difference] = [&plain, &ours].map(|y| difference(request, y, &expected));
    if ours.dtype() != DType::F16 || difference.is_nan() || difference > 1e-3 {
        return match is_conditioned(plain) {
            true => Err(format!("{difference:e}")),
            false => Ok(false),
        };
    }
    Ok(true)
}

/// An asymmetric loss, to differentiate.
fn loss(y: &Tensor) -> Tensor {
    let cotangent = Draws::new(77).tensor(y.dims());
    (y * cotangent).unwrap().sum_all().unwrap()
}

pub fn gradients_are_the_slopes_of_the_loss(config: &StackConfig, request: &Request) -> Holds {
    // A step may cross the kink of an activation, or lead to other experts; a tenth of it hardly does as well.
    const STEPS: [f64; 2] = [1e-6, 1e-7];
    let (layers, parameters) =
        made_with_parameters(&Device::Cpu, DType::F64, |vb| Stack::new(config, vb));
    let x = Var::from_tensor(&request.x()).unwrap();
    let context = request.context(DType::F64);
    let loss = || Ok::<_, String>(loss(&words(layers.forward_with(x.as_tensor(), &context))?));
    let gradients = words(loss()?.backward())?;
    let watched = words(layers.observe(x.as_tensor(), &context, |_, _| Ok(())))?;
    let of_watched = words(self::loss(&watched).backward())?;
    let mut variables: Vec<(String, Var)> = parameters;
    variables.push(("x".to_string(), x.clone()));
    let mut slope = 0.0;
    let mut directions = Vec::new();
    for (i, (name, variable)) in variables.iter().enumerate() {
        let mut direction = Draws::new(500 + i as u64).tensor(variable.dims());
        let along = |gradients: &candle_blocks::candle_core::backprop::GradStore| {
            let gradient = gradients.get(variable);
            gradient.map(|gradient| {
                let sum = (gradient * &direction).unwrap().sum_all().unwrap();
                sum.to_scalar::<f64>().unwrap()
            })
        };
        match (along(&gradients), along(&of_watched)) {
            (None, None) if !request.reaches(config, name) => {
                // The loss depends on an xIELU's fixed constants, and on output scales.
                if name.contains(".xielu.") || name.contains("output_scale") {
                    direction = direction.zeros_like().unwrap();
                }
            }
            (Some(whole), Some(watched))
                if (whole - watched).abs() <= 1e-9 * whole.abs().max(1.0) =>
            {
                slope += whole;
            }
            found => return Err(format!("{name}: {found:?}")),
        }
        directions.push(direction);
    }
    let start: Vec<Tensor> = variables
        .iter()
        .map(|(_, v)| v.as_tensor().copy().unwrap())
        .collect();
    let at = |step: f64| {
        for ((variable, start), direction) in variables
            .iter()
            .map(|(_, v)| v)
            .zip(&start)
            .zip(&directions)
        {
            let moved = (start + (direction * step).unwrap()).unwrap();
            variable.set(&moved).unwrap();
        }
        Ok::<_, String>(loss()?.to_scalar::<f64>().unwrap())
    };
    let mut found = Vec::new();
    for step in STEPS {
        let difference = (at(step)? - at(-step)?) / (2.0 * step);
        if (difference - slope).abs() <= 1e-5 * slope.abs().max(1.0) {
            return Ok(true);
        }
        found.push(difference);
    }
    Err(format!("{slope} by gradients, {found:?} by differences"))
}
