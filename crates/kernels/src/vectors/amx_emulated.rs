//! AMX in plain Rust with the instructions' bits, to test code over tiles on CPUs without them.
//!
//! On a Sapphire Rapids CPU, 716,800 results from `tdpbf16ps` were compared with this arithmetic: random values of
//! every kind, near both ends of the range, subnormal, infinite and NaN. They differed in NaN payloads only.

use std::{array::from_fn, cell::Cell};

use super::avx512::Avx512;
use super::level::{Instructions, Task, token};
use super::tiles::{RIGHT, TILE, TILES, TileShapes, Tiles};

token! {
    /// Proves that the CPU has AVX-512, with which the emulation is compiled. A separate instruction set that must
    /// be selected by name.
    AmxEmulated: is_x86_feature_detected "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx2" "fma"
}

impl AmxEmulated {
    /// Returns the vectors.
    #[inline(always)]
    pub fn avx512(self) -> Avx512 {
        Avx512 { found: () }
    }
}

/// A tile's contents.
type Tile = [[u32; TILE]; TILE];

/// A thread's registers.
struct Registers {
    shapes: TileShapes,
    tiles: [Tile; TILES],
}

thread_local! {
    static REGISTERS: Cell<Option<Box<Registers>>> = const { Cell::new(None) };
}

impl Registers {
    /// Takes the calling thread's registers. The caller must [put them back](Self::put).
    ///
    /// # Panics
    /// If they are not configured. The real CPU would end the process.
    fn taken() -> Box<Self> {
        REGISTERS.take().expect("the tiles are not configured")
    }

    fn put(self: Box<Self>) {
        REGISTERS.set(Some(self));
    }

    /// Returns a tile's configured rows, at least one.
    fn rows(&self, tile: usize) -> usize {
        let rows = self.shapes.rows(tile);
        assert!(rows > 0, "tile {tile} is not configured");
        rows
    }
}

impl Tiles for AmxEmulated {
    unsafe fn configure(self, shapes: &TileShapes) {
        REGISTERS.set(shapes.is_some().then(|| {
            Box::new(Registers {
                shapes: *shapes,
                tiles: [[[0; TILE]; TILE]; TILES],
            })
        }));
    }

    fn shapes(self) -> TileShapes {
        let registers = REGISTERS.take();
        let shapes = registers.as_ref().map_or(TileShapes::NONE, |r| r.shapes);
        REGISTERS.set(registers);
        shapes
    }

    fn release(self) {
        REGISTERS.set(None);
    }

    unsafe fn zero(self, tile: usize) {
        let mut registers = Registers::taken();
        registers.rows(tile);
        registers.tiles[tile] = [[0; TILE]; TILE];
        registers.put();
    }

    unsafe fn load(self, tile: usize, from: *const u32, stride: usize) {
        let mut registers = Registers::taken();
        let rows = registers.rows(tile);
        registers.tiles[tile] = [[0; TILE]; TILE];
        for (i, row) in registers.tiles[tile][..rows].iter_mut().enumerate() {
            // SAFETY: the caller promises that these rows can be read.
            *row = unsafe {
                from.byte_add(i * stride)
                    .cast::<[u32; TILE]>()
                    .read_unaligned()
            };
        }
        registers.put();
    }

    unsafe fn store(self, tile: usize, to: *mut u32, stride: usize) {
        let registers = Registers::taken();
        let rows = registers.rows(tile);
        for (i, row) in registers.tiles[tile][..rows].iter().enumerate() {
            let to = to.wrapping_byte_add(i * stride).cast::<[u32; TILE]>();
            // SAFETY: the caller promises that these rows can be written.
            unsafe { to.write_unaligned(*row) };
        }
        registers.put();
    }

    unsafe fn multiply_add(self, sums: usize, left: usize) {
        self.enter(Products { sums, left });
    }

    unsafe fn multiply_add_bytes(self, sums: usize, left: usize) {
        self.enter(ProductsOfBytes { sums, left });
    }
}

/// The product of a row tile and [`RIGHT`], added to sums. A function of its own, for it is long.
struct Products {
    sums: usize,
    left: usize,
}

impl Task<AmxEmulated> for Products {
    #[inline(always)]
    fn compute(self, _: AmxEmulated) {
        let Self { sums, left } = self;
        let mut registers = Registers::taken();
        let rows = registers.rows(sums);
        assert_eq!((registers.rows(left), registers.rows(RIGHT)), (rows, TILE));
        let mut columns = [[[0.0; TILE]; 2]; TILE];
        for (columns, words) in columns.iter_mut().zip(registers.tiles[RIGHT]) {
            *columns = terms(words);
        }
        for row in 0..rows {
            let terms = terms(registers.tiles[left][row]);
            let sums = &mut registers.tiles[sums][row];
            let products = sum_of_products(&terms, &columns);
            *sums = add(sums.map(number), products).map(f32::to_bits);
        }
        registers.put();
    }
}

/// Like [`Products`], for bytes.
struct ProductsOfBytes {
    sums: usize,
    left: usize,
}

impl Task<AmxEmulated> for ProductsOfBytes {
    #[inline(always)]
    fn compute(self, _: AmxEmulated) {
        let Self { sums, left } = self;
        let mut registers = Registers::taken();
        let rows = registers.rows(sums);
        assert_eq!((registers.rows(left), registers.rows(RIGHT)), (rows, TILE));
        for row in 0..rows {
            let mut sum = registers.tiles[sums][row];
            for (word, columns) in registers.tiles[RIGHT].iter().enumerate() {
                let left = registers.tiles[left][row][word];
                sum = from_fn(|column| add_products_of_bytes(sum[column], left, columns[column]));
            }
            registers.tiles[sums][row] = sum;
        }
        registers.put();
    }
}

/// Adds four byte products, signed times unsigned, to a sum.
#[inline(always)]
fn add_products_of_bytes(sum: u32, left: u32, right: u32) -> u32 {
    let products = (0..4).map(|byte| {
        let left = (left >> (8 * byte)) as i8;
        let right = (right >> (8 * byte)) as u8;
        i32::from(left) * i32::from(right)
    });
    sum.wrapping_add_signed(products.sum())
}

/// The values for even and odd `k` in words.
type Terms = [[f32; TILE]; 2];

#[inline(always)]
fn terms(words: [u32; TILE]) -> Terms {
    [
        words.map(|word| number(word << 16)),
        words.map(|word| number(word & 0xffff_0000)),
    ]
}

/// Returns the operand with these bits. Subnormal values become zeros.
#[inline(always)]
fn number(bits: u32) -> f32 {
    f32::from_bits(without_subnormal(bits))
}

/// Returns a value's bits, or a zero's with the same sign if the value is subnormal.
#[inline(always)]
fn without_subnormal(bits: u32) -> u32 {
    const EXPONENT: u32 = 0xff << 23;
    const SIGN: u32 = 1 << 31;
    bits & if bits & EXPONENT == 0 { SIGN } else { !0 }
}

/// Returns a row's products with a tile's columns, added in two chains that meet at the end.
#[inline(always)]
fn sum_of_products(row: &Terms, columns: &[Terms; TILE]) -> [f32; TILE] {
    let mut chains = [[0.0; TILE]; 2];
    for (word, columns) in columns.iter().enumerate() {
        for (parity, chain) in chains.iter_mut().enumerate() {
            *chain = multiply_add([row[parity][word]; TILE], columns[parity], *chain);
        }
    }
    add(chains[0], chains[1])
}

#[inline(always)]
fn add(a: [f32; TILE], b: [f32; TILE]) -> [f32; TILE] {
    multiply_add([1.0; TILE], a, b)
}

/// Returns `a * b + c`, rounded once, with zeros for subnormal results. The check for subnormal results assumes an
/// unbounded exponent: a result that only rounding raises to the smallest normal value must not be less than that
/// before.
#[inline(always)]
fn multiply_add(a: [f32; TILE], b: [f32; TILE], c: [f32; TILE]) -> [f32; TILE] {
    let mut results: [f32; TILE] = from_fn(|i| a[i].mul_add(b[i], c[i]));
    let is_least = results.map(|result| u32::from(result.abs() == f32::MIN_POSITIVE));
    if is_least.into_iter().fold(0, |any, is| any | is) != 0 {
        // Half a 24-digit step below the smallest normal value: from there on a result rounds up to it.
        const ROUNDS_UP: f64 = f32::MIN_POSITIVE as f64 * (1.0 - 1.0 / (1 << 25) as f64);
        for (i, result) in results.iter_mut().enumerate() {
            let exact = f64::from(a[i]) * f64::from(b[i]) + f64::from(c[i]);
            if result.abs() == f32::MIN_POSITIVE && exact.abs() < ROUNDS_UP {
                *result = 0f32.copysign(*result);
            }
        }
    }
    results.map(|result| f32::from_bits(without_subnormal(result.to_bits())))
}

#[cfg(test)]
mod tests;
