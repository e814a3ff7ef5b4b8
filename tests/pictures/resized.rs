//! Bytes after resizing are those that PIL and torchvision give.

use std::collections::BTreeMap;

use candle_blocks::pictures::Backend;
use candle_blocks_media::pictures::{Filter, Size, resize};

use crate::pattern::{crc, pattern};
use crate::weights::is_present;

#[test]
fn two_hundred_sizes_have_the_bytes_of_pil_and_torchvision_with_every_filter() {
    if !is_present("pictures") {
        return;
    }
    type Row = (usize, usize, usize, usize, u32, u64, String, u32);
    let rows: Vec<Row> = crate::json("resized.json");
    let mut counts: BTreeMap<(String, u64), (usize, usize)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (width, height, new_width, new_height, seed, number, library, expected) in rows {
        let to = Size {
            height: new_height,
            width: new_width,
        };
        let backend: Backend = library.parse().unwrap();
        let filter = Filter::numbered(number).unwrap();
        let image = pattern(width, height, seed);
        let ours = resize(&image, to, filter, backend).unwrap();
        assert_eq!((ours.width(), ours.height()), (new_width, new_height));
        let is_same = crc(ours.bytes().iter().copied()) == expected;
        let count = counts.entry((library.clone(), number)).or_default();
        count.0 += usize::from(is_same);
        count.1 += 1;
        if !is_same {
            wrong.push(format!("{width}x{height} to {to:?}, {filter:?}, {library}"));
        }
    }
    assert!(wrong.is_empty(), "{counts:?}\n{}", wrong.join("\n"));
    assert_eq!(counts.len(), 10);
    assert!(counts.values().all(|count| count.1 >= 199), "{counts:?}");
}
