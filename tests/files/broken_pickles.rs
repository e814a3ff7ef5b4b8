//! Damaged archives and pickles from `torch.save`: each is an error, for any bytes.

use candle_blocks::{Error, checkpoint::files::TensorFiles};
use safetensors::Dtype;

use crate::cases::for_cases;
use crate::hostile::Folder;
use crate::said::assert_says;
use crate::torch_file::{View, ended, int, pickle, record, text, torch_file, zip};

const DATA: [u8; 24] = [3; 24];

fn valid() -> Vec<u8> {
    let views = [
        View {
            name: "weight",
            first: 1,
            shape: &[2, 2],
            strides: &[2, 1],
        },
        View {
            name: "turned",
            first: 0,
            shape: &[3, 2],
            strides: &[1, 3],
        },
    ];
    torch_file(Dtype::F32, &views, &DATA)
}

fn opened(bytes: &[u8]) -> candle_blocks::Result<TensorFiles> {
    let folder = Folder::new();
    let files = TensorFiles::open(folder.write("model.bin", bytes))?;
    for name in files.names() {
        if let Ok(tensor) = files.read(name) {
            assert_eq!(tensor.dims(), files.info(name).unwrap().shape);
        }
    }
    Ok(files)
}

fn refused(bytes: &[u8], words: &[&str]) {
    let error = opened(bytes).unwrap_err();
    assert!(
        matches!(error, Error::UnreadableWeights { .. }),
        "{error:?}"
    );
    assert_says(&error, words);
    assert_says(&error, &["model.bin"]);
}

/// A file whose pickle begins as one should.
fn of_pickle(pickle: &[u8]) -> Vec<u8> {
    let pickle = [b"\x80\x02", pickle].concat();
    zip(&[("m/data.pkl", &pickle), ("m/data/0", &DATA)])
}

#[test]
fn a_whole_file_is_read() {
    assert_eq!(opened(&valid()).unwrap().names().count(), 2);
}

/// The same archive with wide fields, as of more than 4 GB: an end record of its own, and in the directory sizes and places of
/// eight bytes.
fn wide(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let narrow = zip(entries);
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let local = bytes.len() as u64;
        let padding = (64 - (bytes.len() + 30 + name.len()) % 64) % 64;
        bytes.extend(record(name, data.len(), padding, None));
        bytes.extend(data.iter());
        let mut record = record(name, data.len(), 28, Some(0));
        record[20..28].fill(0xff); // both sizes
        record[42..46].fill(0xff); // the place
        let at = record.len() - 28;
        record[at..at + 4].copy_from_slice(&[1, 0, 24, 0]);
        for (i, field) in [data.len() as u64, data.len() as u64, local]
            .iter()
            .enumerate()
        {
            record[at + 4 + 8 * i..][..8].copy_from_slice(&field.to_le_bytes());
        }
        directory.extend(record);
    }
    assert!(narrow.starts_with(&bytes));
    let (offset, n) = (bytes.len() as u64, entries.len() as u64);
    let end = offset + directory.len() as u64;
    bytes.extend(&directory);
    bytes.extend(b"PK\x06\x06");
    bytes.extend(44u64.to_le_bytes());
    bytes.extend([0; 12]); // versions and disks
    for field in [n, n, directory.len() as u64, offset] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(b"PK\x06\x07\0\0\0\0");
    bytes.extend(end.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([0xff; 12]); // counts, size and place
    bytes.extend([0, 0]);
    bytes
}

/// PyTorch writes such archives above 4 GB.
#[test]
fn an_archive_with_wide_fields_has_the_same_tensors() {
    let views = [View {
        name: "weight",
        first: 1,
        shape: &[2, 2],
        strides: &[2, 1],
    }];
    let data: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let pickle = pickle(Dtype::F32, 6, &views);
    let entries: [(&str, &[u8]); 2] = [("m/data.pkl", &pickle), ("m/data/0", &data)];
    let wide = wide(&entries);
    let folder = Folder::new();
    let files = TensorFiles::open(folder.write("model.bin", &wide)).unwrap();
    let weight = files.read("weight").unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(weight, [[1., 2.], [3., 4.]]);

    for n in 4..wide.len() {
        refused(&wide[..n], &["cut short"]);
    }
    // A record of wide fields without one of them, and an end record that is elsewhere.
    let at = wide
        .windows(4)
        .position(|four| four == [1, 0, 24, 0])
        .unwrap();
    let mut short = wide.clone();
    short[at + 2] = 16;
    refused(&short, &["cut short"]);
    let at = wide
        .windows(4)
        .position(|four| four == b"PK\x06\x07")
        .unwrap();
    let mut elsewhere = wide.clone();
    elsewhere[at + 8] ^= 1;
    refused(&elsewhere, &["cut short"]);
}

/// PyTorch compares no checksums, and `torch.serialization.set_crc32_options(False)` writes zeros.
#[test]
fn checksums_are_not_compared() {
    assert!(valid().windows(4).any(|four| four == b"PK\x01\x02")); // whose checksums are zeros
    let mut other = valid();
    let at = other
        .windows(4)
        .rposition(|four| four == b"PK\x01\x02")
        .unwrap();
    other[at + 16..at + 20].fill(7);
    assert_eq!(opened(&other).unwrap().names().count(), 2);
}

#[test]
fn every_truncation_is_refused() {
    let bytes = valid();
    for n in 4..bytes.len() {
        refused(&bytes[..n], &["cut short"]);
    }
}

#[test]
fn damage_anywhere_is_an_error_or_other_tensors() {
    let valid = valid();
    let mut n_refused = 0;
    for_cases(2000, |draw| {
        let mut bytes = valid.clone();
        for _ in 0..draw.int_in_range(1..=4)? {
            let at = draw.int_in_range(0..=bytes.len() - 1)?;
            bytes[at] = draw.arbitrary()?;
        }
        n_refused += usize::from(opened(&bytes).is_err());
        Ok(())
    });
    assert!(n_refused > 250, "{n_refused}");
}

#[test]
fn sizes_beyond_the_storage_are_refused_by_the_tensor_s_name() {
    let of = |first, shape: &[usize], strides: &[usize]| {
        torch_file(
            Dtype::F32,
            &[View {
                name: "weight",
                first,
                shape,
                strides,
            }],
            &DATA,
        )
    };
    let beyond = ["\"weight\"", "beyond its storage of 24 bytes"];
    refused(&of(0, &[7], &[1]), &beyond);
    refused(&of(5, &[2], &[1]), &beyond);
    refused(&of(0, &[2, 2], &[5, 1]), &beyond);
    let far = 1 << (usize::BITS / 2 + 8);
    refused(&of(0, &[far], &[far]), &beyond);
    refused(&of(usize::MAX >> 1, &[1], &[1]), &beyond);
    let most = 1 << (usize::BITS - 2);
    refused(&of(0, &[most, most], &[0, 0]), &["\"weight\""]);
    refused(
        &of(0, &[1000], &[0]),
        &["\"weight\"", "repeats", "contiguous()"],
    );
    refused(&of(0, &[2, 2], &[1]), &["\"weight\"", "strides"]);
    let pickle = pickle(
        Dtype::F32,
        7,
        &[View {
            name: "weight",
            first: 0,
            shape: &[2],
            strides: &[1],
        }],
    );
    refused(
        &zip(&[("m/data.pkl", &pickle), ("m/data/0", &DATA)]),
        &["\"weight\"", "7 elements", "24 bytes"],
    );
    refused(
        &zip(&[("m/data.pkl", &pickle)]),
        &["\"weight\"", "data/0", "does not exist"],
    );
}

#[test]
fn archives_with_false_sizes_are_refused() {
    let pickle = pickle(
        Dtype::F32,
        6,
        &[View {
            name: "weight",
            first: 0,
            shape: &[6],
            strides: &[1],
        }],
    );
    let twice: [(&str, &[u8]); 3] = [
        ("m/data.pkl", &pickle),
        ("m/data/0", &DATA),
        ("m/data/0", &DATA),
    ];
    refused(&zip(&twice), &["\"m/data/0\"", "twice"]);
    let mut compressed = valid();
    let at = compressed
        .windows(4)
        .rposition(|four| four == b"PK\x01\x02")
        .unwrap();
    compressed[at + 10] = 8;
    refused(&compressed, &["\"m/data/0\"", "compressed"]);
    // Two records that point to the same bytes.
    let mut bytes = record("m/data.pkl", pickle.len(), 0, None);
    bytes.extend(&pickle);
    let records = ["m/data.pkl", "m/data/0"].map(|name| record(name, pickle.len(), 0, Some(0)));
    refused(&ended(bytes.clone(), &records.concat(), 2), &["overlap"]);
    // More than there is.
    let records = record("m/data.pkl", 1 << 31, 0, Some(0));
    refused(
        &ended(bytes.clone(), &records, 1),
        &["\"m/data.pkl\"", "beyond its place"],
    );
    let records = record("m/data.pkl", pickle.len(), 0, Some(0));
    refused(&ended(bytes.clone(), &records, 60_000), &["cut short"]);
    refused(
        &zip(&[("notes.txt", b"")]),
        &["neither", "torch.save", "numpy.savez"],
    );
    refused(
        &zip(&[
            ("m/data.pkl", &pickle),
            ("m/data/0", &DATA),
            ("m/byteorder", b"big"),
        ]),
        &["byteorder"],
    );
    refused(
        &zip(&[("m/data.pkl", &pickle), ("m/constants.pkl", b"")]),
        &["TorchScript"],
    );
}

#[test]
fn pickles_of_anything_else_are_refused() {
    refused(
        &of_pickle(b"cos\nsystem\nX\x02\0\0\0ls\x85R."),
        &["\"os.system\"", "nothing in a pickle is executed"],
    );
    refused(&of_pickle(b"cbuiltins\neval\n."), &["\"builtins.eval\""]);
    refused(
        &of_pickle(b"ctorch\nQInt8Storage\n."),
        &["\"torch.QInt8Storage\""],
    );
    refused(&of_pickle(b"]."), &["a list", "expected a dict"]);
    refused(&of_pickle(b"}K\x01]s."), &["an int as a key"]);
    refused(&of_pickle(b"}X\x01\0\0\0aK\x03s."), &["\"a\"", "an int"]);
    refused(
        &of_pickle(b"\x95\0\0\0\0\0\0\0\0}."),
        &["0x95", "torch.save"],
    );
    refused(&zip(&[("m/data.pkl", b"\x80\x04}.")]), &["protocol 4"]);
    refused(&zip(&[("m/data.pkl", b"")]), &["ends too early"]);
    for broken in [
        &b"("[..],
        b"t.",
        b"R.",
        b"}b.",
        b"a.",
        b"(\x85.",
        b"K\x01(\x86.",
        b"h\0.",
        b"s.",
        b"}(K\x01u.",
        b"Q.",
        b"q\0.",
    ] {
        refused(&of_pickle(broken), &["pickle"]);
    }
}

#[test]
fn a_pickle_takes_no_more_memory_than_its_file_may() {
    // A length of 4 GB.
    refused(&of_pickle(b"X\xff\xff\xff\xffabc"), &["ends too early"]);
    // A dict in itself, and a million lists in each other.
    refused(&of_pickle(b"}q\0X\x01\0\0\0ah\0s."), &["\"a\"", "a dict"]);
    let deep = [&b"]".repeat(20_000)[..], &b"a".repeat(19_999), b"."].concat();
    refused(&of_pickle(&deep), &["a list"]);
    // A pair of itself, many times over: nothing is copied.
    let doubled = [&b"K\x01"[..], &b"q\0h\0\x86".repeat(200), b"."].concat();
    refused(&of_pickle(&doubled), &["a tuple"]);
    // More values than any file of tensors has.
    let many = b"]".repeat(1_000_000);
    refused(&of_pickle(&many), &["more values"]);
    // One long shape for many tensors.
    let mut shared = b"((".to_vec();
    text(&mut shared, "storage");
    shared.extend(b"ctorch\nFloatStorage\n");
    text(&mut shared, "0");
    text(&mut shared, "cpu");
    int(&mut shared, 6);
    shared.extend(b"tQq\x01(");
    shared.extend(b"K\x01".repeat(10_000));
    shared.extend(b"tq\x02");
    shared.extend(b"ctorch._utils\n_rebuild_tensor_v2\nq\x03");
    shared.extend(b"h\x03(h\x01K\0h\x02h\x02\x89NtR".repeat(1_000));
    refused(&of_pickle(&shared), &["more values"]);
}

/// Instructions in any order, as in the fuzzer's inputs.
#[test]
fn instructions_in_any_order_never_panic() {
    const ALL: &[u8] = b"(N\x88KMJ\x8aGXc)]}t\x85\x86\x87qrhjaseuQRb.";
    for_cases(2000, |draw| {
        let mut pickle = Vec::new();
        for _ in 0..draw.int_in_range(0..=40)? {
            pickle.push(*draw.choose(ALL)?);
            if draw.ratio(1, 4)? {
                pickle.push(draw.int_in_range(0..=3)?);
            }
        }
        let _ = opened(&of_pickle(&pickle));
        Ok(())
    });
}
