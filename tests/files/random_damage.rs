//! Random damage: a file is accepted exactly when the `safetensors` crate accepts it, and read alike.

use arbtest::arbitrary::{Result, Unstructured};
use candle_blocks::checkpoint::files::TensorFiles;

use crate::bad_directories::INDEX;
use crate::cases::for_cases;
use crate::hostile::{Entry, Folder, framed, header, valid};
use crate::judged_by_safetensors::agrees_with_the_crate;

/// The number of cases for each property that only reads small files.
const CASES: usize = 2000;

/// Flipped bytes, a cut or an extension, anywhere.
#[test]
fn a_damaged_file_is_judged_as_by_the_safetensors_crate() {
    for_cases(CASES, |draw| {
        let mut bytes = valid();
        for _ in 0..draw.int_in_range(0..=5)? {
            change(&mut bytes, draw)?;
        }
        if draw.arbitrary()? {
            bytes.resize(draw.int_in_range(0..=699)?, 0);
        }
        agrees_with_the_crate(&bytes);
        Ok(())
    });
}

/// Well-formed headers with wrong and right values; random bytes rarely pass the JSON parser.
#[test]
fn a_random_header_is_judged_as_by_the_safetensors_crate() {
    for_cases(CASES, |draw| {
        let mut filled = 0u64;
        let mut tensors = Vec::new();
        for i in 0..draw.int_in_range(0..=3)? {
            let dtype = *draw.choose(&["U8", "F16", "F32", "I64", "F4", "BOOL"])?;
            let shape = (0..draw.int_in_range(0..=3)?).map(|_| dimension(draw));
            let shape: Vec<usize> = shape.collect::<Result<_>>()?;
            let bits = match dtype {
                "F4" => 4,
                "F16" => 16,
                "F32" => 32,
                "I64" => 64,
                _ => 8,
            };
            let size = shape
                .iter()
                .fold(bits, |n: u64, &dim| n.wrapping_mul(dim as u64))
                / 8
                % 1000;
            let (shift, longer) = match draw.ratio(1, 10)? {
                true => (draw.int_in_range(-2..=2)?, draw.int_in_range(-2..=2)?),
                false => (0, 0),
            };
            let begin = filled.saturating_add_signed(shift) as usize;
            let end = filled.saturating_add_signed(longer + size as i64) as usize;
            filled += size;
            tensors.push((format!("t{i}"), dtype, shape, [begin, end]));
        }
        let extra = match draw.ratio(1, 5)? {
            true => draw.int_in_range(-2..=2)?,
            false => 0,
        };
        let entries: Vec<Entry> = tensors
            .iter()
            .map(|(name, dtype, shape, at)| (&**name, *dtype, &**shape, *at))
            .collect();
        let data = vec![7; filled.saturating_add_signed(extra) as usize];
        agrees_with_the_crate(&framed(header(&entries).as_bytes(), &data));
        Ok(())
    });
}

#[test]
fn a_damaged_index_never_panics() {
    for_cases(CASES, |draw| {
        let folder = Folder::new();
        folder.write("m.safetensors", &valid());
        let mut json = br#"{"weight_map":{"down.weight":"m.safetensors"}}"#.to_vec();
        for _ in 0..draw.int_in_range(1..=3)? {
            change(&mut json, draw)?;
        }
        match TensorFiles::open(folder.write(INDEX, &json)) {
            Ok(files) => assert_eq!(files.names().collect::<Vec<_>>(), ["down.weight"]),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(INDEX) || text.contains("m.safe"), "{text}");
            }
        }
        Ok(())
    });
}

/// Any byte, anywhere.
fn change(bytes: &mut [u8], draw: &mut Unstructured) -> Result<()> {
    let place = draw.int_in_range(0..=bytes.len() - 1)?;
    bytes[place] = draw.arbitrary()?;
    Ok(())
}

/// Mostly a small one.
fn dimension(draw: &mut Unstructured) -> Result<usize> {
    Ok(match draw.int_in_range(0..=9)? {
        0 => usize::MAX,
        1 => usize::try_from(1u64 << 33).unwrap_or(usize::MAX),
        _ => draw.int_in_range(0..=3)?,
    })
}
