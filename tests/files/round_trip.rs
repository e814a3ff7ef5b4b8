//! Written files read back the same, by this crate and by the `safetensors` crate.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "one range of rows is meant"
)]

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use candle_blocks::Result;
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::checkpoint::write::write_safetensors;
use candle_core::{DType, Device, Tensor};
use safetensors::SafeTensors;

#[test]
fn every_type_and_shape_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let written = samples();
    write_safetensors(&path, &written, None).unwrap();
    let files = TensorFiles::open(&path).unwrap();
    assert_eq!(files.names().count(), written.len());
    for (name, tensor) in &written {
        assert_same(name, &files.read(name).unwrap(), tensor);
    }
}

#[test]
fn the_safetensors_crate_reads_the_same_and_would_write_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let written = samples();
    write_safetensors(&path, &written, None).unwrap();
    let bytes = fs::read(&path).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), written.len());
    // The crate's own serializer makes the same file from the tensors that it read.
    assert_eq!(
        safetensors::serialize(theirs.tensors(), None).unwrap(),
        bytes
    );
}

#[test]
fn a_file_of_no_tensors_keeps_its_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.safetensors");
    let metadata = HashMap::from([("format", "pt"), ("step", "7")])
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    write_safetensors(&path, &[], Some(metadata)).unwrap();
    let files = TensorFiles::open(&path).unwrap();
    assert_eq!(files.names().count(), 0);
    assert_eq!(files.metadata()["format"], "pt");
    assert_eq!(files.metadata()["step"], "7");
}

#[test]
fn equal_input_gives_equal_bytes_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, tensors: &[(String, Tensor)]| {
        let metadata: HashMap<_, _> = (0..20).map(|i| (i.to_string(), "x".into())).collect();
        let path = folder.path().join(name);
        write_safetensors(&path, tensors, Some(metadata)).unwrap();
        fs::read(path).unwrap()
    };
    let mut tensors = samples();
    let first = write("a", &tensors);
    tensors.reverse();
    assert_eq!(write("b", &tensors), first);
}

#[test]
fn strided_tensors_and_views_are_written_by_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.safetensors");
    let whole = Tensor::arange(0f32, 24.0, &Device::Cpu)
        .unwrap()
        .reshape((2, 3, 4))
        .unwrap();
    let views = [
        ("transposed", whole.transpose(0, 2).unwrap()),
        ("contiguous_part", whole.narrow(0, 1, 1).unwrap()),
        ("strided_part", whole.narrow(2, 1, 2).unwrap()),
        (
            "broadcast",
            whole
                .narrow(0, 0, 1)
                .unwrap()
                .broadcast_as((5, 3, 4))
                .unwrap(),
        ),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor));
    write_safetensors(&path, &views, None).unwrap();
    let files = TensorFiles::open(&path).unwrap();
    for (name, tensor) in &views {
        assert_same(name, &files.read(name).unwrap(), tensor);
    }
}

#[test]
fn tensors_longer_than_one_read_come_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.safetensors");
    // Around the 65536 values of f32 that one read takes, and several reads.
    let tensors: Vec<_> = [65_535, 65_536, 65_537, 131_072, 200_001]
        .map(|n| {
            (
                n.to_string(),
                Tensor::arange(0f32, n as f32, &Device::Cpu).unwrap(),
            )
        })
        .into();
    write_safetensors(&path, &tensors, None).unwrap();
    let files = TensorFiles::open(&path).unwrap();
    for (name, tensor) in &tensors {
        assert_same(name, &files.read(name).unwrap(), tensor);
        let n = tensor.elem_count();
        let halves = files.read_rows(name, &[n / 2..n, 0..n / 2]).unwrap();
        let expected = Tensor::cat(
            &[
                tensor.narrow(0, n / 2, n - n / 2).unwrap(),
                tensor.narrow(0, 0, n / 2).unwrap(),
            ],
            0,
        );
        assert_same(name, &halves, &expected.unwrap());
    }
}

#[test]
fn rows_are_what_narrow_and_cat_give() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fused.safetensors");
    let tensors = samples();
    write_safetensors(&path, &tensors, None).unwrap();
    let files = TensorFiles::open(&path).unwrap();
    let selections: [&[Range<usize>]; 6] =
        [&[], &[1..1], &[0..3], &[1..2], &[2..3, 0..1], &[0..2, 1..3]];
    let mut checked = 0;
    for (name, tensor) in tensors
        .iter()
        .filter(|(_, t)| t.rank() > 0 && t.dims()[0] == 3)
    {
        for rows in selections {
            let parts = rows
                .iter()
                .map(|r| tensor.narrow(0, r.start, r.len()).unwrap());
            let parts: Vec<_> = parts.filter(|part| part.dims()[0] > 0).collect();
            let read = files.read_rows(name, rows).unwrap();
            match parts.is_empty() {
                true => assert_eq!(read.dims()[0], 0),
                false => assert_same(name, &read, &Tensor::cat(&parts, 0).unwrap()),
            }
            checked += 1;
        }
    }
    assert!(checked >= selections.len() * 9, "one tensor of every type");
}

#[test]
fn a_bool_is_read_as_u8() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bool.safetensors");
    let header = br#"{"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 0, 1]].concat();
    fs::write(&path, bytes).unwrap();
    let mask = TensorFiles::open(&path).unwrap().read("mask").unwrap();
    assert_eq!(mask.to_vec1::<u8>().unwrap(), [1, 0, 1]);
}

#[test]
fn a_sharded_checkpoint_reads_as_the_single_file() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = samples();
    let single = folder.path().join("single");
    fs::create_dir(&single).unwrap();
    write_safetensors(single.join("model.safetensors"), &tensors, None).unwrap();
    let sharded = folder.path().join("sharded");
    write_sharded(&sharded, &tensors, 3).unwrap();

    let expected = TensorFiles::open(&single).unwrap();
    let shards = (0..3).map(|i| sharded.join(shard(i))).collect();
    for files in [
        TensorFiles::open(&sharded).unwrap(),
        TensorFiles::open(sharded.join("model.safetensors.index.json")).unwrap(),
        TensorFiles::open_files(shards).unwrap(),
    ] {
        assert!(files.names().eq(expected.names()));
        assert_eq!(files.n_bytes(), expected.n_bytes());
        assert_eq!(files.directory(), sharded);
        for name in expected.names() {
            assert_same(
                name,
                &files.read(name).unwrap(),
                &expected.read(name).unwrap(),
            );
        }
    }
}

#[test]
fn a_directory_with_both_gives_the_single_file_as_transformers_does() {
    let folder = tempfile::tempdir().unwrap();
    write_sharded(folder.path(), &samples(), 2).unwrap();
    let only = [(
        "only".to_owned(),
        Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap(),
    )];
    write_safetensors(folder.path().join("model.safetensors"), &only, None).unwrap();
    let files = TensorFiles::open(folder.path()).unwrap();
    assert_eq!(files.names().collect::<Vec<_>>(), ["only"]);
    assert_eq!(files.path(), folder.path().join("model.safetensors"));
}

#[test]
fn a_directory_with_one_file_of_another_name_gives_that_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("feed_forward.safetensors");
    write_safetensors(&path, &samples(), None).unwrap();
    let files = TensorFiles::open(folder.path()).unwrap();
    assert_eq!(
        (files.path(), files.directory()),
        (path.as_path(), folder.path())
    );
}

#[test]
fn many_threads_can_read_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let tensors = samples();
    write_safetensors(&path, &tensors, None).unwrap();
    let files = TensorFiles::open(&path).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                assert!(!tensors.is_empty());
                for (name, tensor) in tensors.iter().cycle().take(20 * tensors.len()) {
                    assert_same(name, &files.read(name).unwrap(), tensor);
                }
            });
        }
    });
}

#[test]
fn similar_names_come_nearest_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.safetensors");
    let zero = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let tensors = [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "lm_head.bias",
    ]
    .map(|name| (name.to_owned(), zero.clone()));
    write_safetensors(&path, &tensors, None).unwrap();
    let files = TensorFiles::open(&path).unwrap();
    assert_eq!(files.similar("wte.weight", 1), ["transformer.wte.weight"]);
    assert_eq!(
        files.similar("transformer.wte.wieght", 5),
        ["transformer.wte.weight", "transformer.wpe.weight"]
    );
    assert!(files.similar("q", 5).is_empty());
    assert!(files.similar("", 5).is_empty());
}

const TYPES: [DType; 9] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// Every dtype in every kind of shape: a matrix, a vector, a scalar, and two without elements.
fn samples() -> Vec<(String, Tensor)> {
    let mut tensors = Vec::new();
    for (i, dtype) in TYPES.into_iter().enumerate() {
        for shape in [&[3, 5][..], &[7], &[], &[0], &[3, 0, 2]] {
            let n: usize = shape.iter().product();
            let values: Vec<f64> = (0..n).map(|j| (j + 10 * i) as f64).collect();
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            tensors.push((
                format!("{}.{shape:?}", dtype.as_str()),
                tensor.to_dtype(dtype).unwrap(),
            ));
        }
    }
    tensors
}

fn shard(i: usize) -> String {
    format!("model-{i}.safetensors")
}

/// Deals the tensors out to `n` shards, with an index.
fn write_sharded(directory: &Path, tensors: &[(String, Tensor)], n: usize) -> Result<()> {
    fs::create_dir_all(directory).unwrap();
    let mut weight_map = HashMap::new();
    for i in 0..n {
        let part: Vec<_> = tensors.iter().skip(i).step_by(n).cloned().collect();
        write_safetensors(directory.join(shard(i)), &part, None)?;
        weight_map.extend(part.into_iter().map(|(name, _)| (name, shard(i))));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map });
    fs::write(
        directory.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    Ok(())
}

/// Same type, shape and values. The samples hold small integers, which f64 holds exactly.
fn assert_same(name: &str, found: &Tensor, expected: &Tensor) {
    assert_eq!(found.dtype(), expected.dtype(), "{name}");
    assert_eq!(found.dims(), expected.dims(), "{name}");
    let values = |tensor: &Tensor| {
        let flat = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
        flat.to_vec1::<f64>().unwrap()
    };
    assert!(values(found) == values(expected), "{name}");
}
