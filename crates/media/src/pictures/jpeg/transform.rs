//! The inverse discrete cosine transform in libjpeg's `jidctint.c`, in integers: Loeffler, Ligtenberg and Moschytz, "Practical fast
//! 1-D DCT algorithms with 11 multiplications" (1989).

/// How many bits constants have after the point, and how many the first pass leaves.
const BITS: u32 = 13;
const LEFT: u32 = 2;

/// Constants with `BITS` bits after the point, by libjpeg's names.
const F_0_298: i32 = 2446;
const F_0_390: i32 = 3196;
const F_0_541: i32 = 4433;
const F_0_765: i32 = 6270;
const F_0_899: i32 = 7373;
const F_1_175: i32 = 9633;
const F_1_501: i32 = 12299;
const F_1_847: i32 = 15137;
const F_1_961: i32 = 16069;
const F_2_053: i32 = 16819;
const F_2_562: i32 = 20995;
const F_3_072: i32 = 25172;

/// Transforms a block, and writes its samples to eight rows, at their beginning.
pub fn inverse(block: &[i16; 64], table: &[i32; 64], rows: &mut [u8], width: usize) {
    if block[1..].iter().all(|&value| value == 0) {
        // One value for all samples.
        let value = i32::from(block[0]).wrapping_mul(table[0]) << LEFT;
        let sample = sample(value.wrapping_add(1 << (LEFT + 2)) >> (LEFT + 3));
        for row in rows.chunks_mut(width).take(8) {
            row[..8].fill(sample);
        }
        return;
    }
    let values = std::array::from_fn(|y| {
        std::array::from_fn(|x| i32::from(block[8 * y + x]).wrapping_mul(table[8 * y + x]))
    });
    let columns = transposed(pass(values, BITS - LEFT));
    let values = transposed(pass(columns, BITS + LEFT + 3));
    for (row, values) in rows.chunks_mut(width).zip(values) {
        for (to, value) in row.iter_mut().zip(values) {
            *to = sample(value);
        }
    }
}

fn transposed(values: [[i32; 8]; 8]) -> [[i32; 8]; 8] {
    std::array::from_fn(|x| std::array::from_fn(|y| values[y][x]))
}

fn sample(value: i32) -> u8 {
    value.saturating_add(128).clamp(0, 255) as u8
}

/// Eight values, one for each column.
type Lanes = [i32; 8];

fn add(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|i| a[i].wrapping_add(b[i]))
}

fn sub(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|i| a[i].wrapping_sub(b[i]))
}

fn mul(a: Lanes, b: i32) -> Lanes {
    a.map(|a| a.wrapping_mul(b))
}

/// Transforms columns, and shifts the results down with rounding. Damaged files may overflow.
fn pass(v: [Lanes; 8], shift: u32) -> [Lanes; 8] {
    // Even part.
    let z1 = mul(add(v[2], v[6]), F_0_541);
    let (t2, t3) = (sub(z1, mul(v[6], F_1_847)), add(z1, mul(v[2], F_0_765)));
    let (t0, t1) = (
        mul(add(v[0], v[4]), 1 << BITS),
        mul(sub(v[0], v[4]), 1 << BITS),
    );
    let even = [add(t0, t3), add(t1, t2), sub(t1, t2), sub(t0, t3)];
    // Odd part.
    let [t0, t1, t2, t3] = [v[7], v[5], v[3], v[1]];
    let (z1, z2, z3, z4) = (add(t0, t3), add(t1, t2), add(t0, t2), add(t1, t3));
    let z5 = mul(add(z3, z4), F_1_175);
    let (z1, z2) = (mul(z1, -F_0_899), mul(z2, -F_2_562));
    let (z3, z4) = (add(mul(z3, -F_1_961), z5), add(mul(z4, -F_0_390), z5));
    let odd = [
        add(add(mul(t3, F_1_501), z1), z4),
        add(add(mul(t2, F_3_072), z2), z3),
        add(add(mul(t1, F_2_053), z2), z4),
        add(add(mul(t0, F_0_298), z1), z3),
    ];
    std::array::from_fn(|i| {
        let sum = match i {
            0..4 => add(even[i], odd[i]),
            _ => sub(even[7 - i], odd[7 - i]),
        };
        sum.map(|sum| sum.wrapping_add(1 << (shift - 1)) >> shift)
    })
}
