//! Audio clips that integers make, as `weights/fixtures/sounds.py` makes them.

const PIECE: usize = 4000;

/// A triangle wave from -8192 to 8192.
fn triangle(i: usize, period: usize) -> i64 {
    ((i % period * 32768 / period) as i64 - 16384).abs() - 8192
}

/// Returns `n` samples of 16 bits.
pub fn sound(seed: usize, n: usize) -> Vec<i16> {
    let mut state = seed as u64;
    let sample = |i: usize| {
        state = (state * 1_103_515_245 + 12345) % (1 << 31);
        let noise = (state >> 16) as i64 - 16384;
        let kind = seed + i / PIECE;
        let tone = triangle(i, 20 + (seed * 7 + i / PIECE * 13) % 150);
        let kinds = [0, noise >> (kind % 5), tone, (noise * tone) >> 15];
        kinds[kind % 4] as i16
    };
    (0..n).map(sample).collect()
}

/// Returns `n` samples from -1 to 1.
pub fn samples(seed: usize, n: usize) -> Vec<f32> {
    let sound = sound(seed, n);
    sound.into_iter().map(|x| f32::from(x) / 32768.0).collect()
}
