//! After the last position of a learned table, the examples name the limit and say what to do.

use crate::{
    message::message,
    model::{Gpt, Size},
    said::assert_says,
};

#[test]
fn a_cache_beyond_the_last_position_names_the_limit_and_the_cure() {
    let size = Size {
        d_model: 32,
        n_blocks: 2,
        n_heads: 2,
        context: 16,
    };
    let model = Gpt::fresh(size, 7).unwrap();
    let mut cache = model.new_cache();
    model.next(&[b'a'; 12], &mut cache).unwrap();
    model.next(&[b'a'; 4], &mut cache).unwrap();
    let words = ["positions 16 to 16", "n_positions 16", "cache", "reset"];
    assert_says(message(model.next(b"a", &mut cache)), &words);
    cache.reset();
    model.next(b"a", &mut cache).unwrap();
}
