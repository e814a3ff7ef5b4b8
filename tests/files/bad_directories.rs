//! Whatever a directory or an index holds, opening it gives tensors or an error that names the file and the fault.

use std::fs;

use candle_blocks::Error;
use candle_blocks::checkpoint::files::TensorFiles;

use crate::{
    hostile::{Folder, valid},
    said::assert_says,
};

pub const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_path_that_does_not_exist_is_named() {
    for name in ["nowhere", "nowhere.safetensors", "nowhere.json"] {
        let path = Folder::new().path(name);
        let error = TensorFiles::open(&path).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        assert_says(&error, &[name, "cannot open"]);
        assert!(!error.to_string().contains("from_hub"), "{error}");
    }
    let cure = "`Checkpoint::from_hub` downloads a model";
    let error = TensorFiles::open("all-MiniLM-L6-v2").unwrap_err();
    assert_says(
        &error,
        &["cannot open", cure, "hf download OWNER/all-MiniLM-L6-v2 "],
    );
    let error = TensorFiles::open("sentence-transformers/all-MiniLM-L6-v2").unwrap_err();
    assert_says(
        &error,
        &[
            "cannot open",
            cure,
            "hf download sentence-transformers/all-MiniLM-L6-v2 ",
        ],
    );
    // `main() -> Result<()>` shows the message too.
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn an_empty_directory_is_named() {
    let folder = Folder::new();
    folder.write("config.json", b"{}");
    folder.write("._model.safetensors", b"left by macOS");
    let error = TensorFiles::open(folder.root()).unwrap_err();
    assert!(matches!(error, Error::NoWeights { .. }), "{error:?}");
    assert_says(
        &error,
        &[folder.root().to_str().unwrap(), "no safetensors file"],
    );
}

#[test]
fn a_directory_with_weights_of_another_format_says_how_to_convert_them() {
    let folder = Folder::new();
    folder.write("tf_model.h5", b"\x89HDF\r\n\x1a\n\0");
    let error = TensorFiles::open(folder.root()).unwrap_err();
    let words = ["only tf_model.h5", "transformers 4", "from_tf=True"];
    assert_says(&error, &words);
    let folder = Folder::new();
    folder.write("flax_model.msgpack", b"\x81\xa4bert\x80");
    let error = TensorFiles::open(folder.root()).unwrap_err();
    let words = [
        "only flax_model.msgpack",
        "transformers 4",
        "from_flax=True",
    ];
    assert_says(&error, &words);
    // A trainer's files are not a model, whatever they contain.
    let folder = Folder::new();
    folder.write("training_args.bin", b"PK\x03\x04");
    folder.write("optimizer.pt", b"PK\x03\x04");
    let error = TensorFiles::open(folder.root()).unwrap_err();
    assert!(matches!(error, Error::NoWeights { .. }), "{error:?}");
    assert!(!error.to_string().contains("training_args"), "{error}");
}

/// Repositories for transformers.js and OpenVINO have their weights in folders; optimum-intel writes them beside config.json.
#[test]
fn weights_for_other_programs_are_named_in_folders_too() {
    let graph = b"<?xml version=\"1.0\"?>\n<net name=\"model\" version=\"11\">";
    // The folder, its files, and words of the error.
    type Case<'c> = (&'c str, &'c [(&'c str, &'c [u8])], &'c [&'c str]);
    let cases: [Case; 3] = [
        (
            "onnx",
            &[("onnx/model.onnx", b"\x08\x07\x12\x07pytorch")],
            &["onnx", "model.onnx", "an ONNX file", "converted from"],
        ),
        (
            "openvino",
            &[
                ("openvino/openvino_model.bin", b"\0\0\0\0"),
                ("openvino/openvino_model.xml", graph),
            ],
            &["openvino", "an OpenVINO model", "converted from"],
        ),
        (
            ".",
            &[
                ("openvino_model.bin", b"\0\0\0\0"),
                ("openvino_model.xml", graph),
            ],
            &["only openvino_model", "an OpenVINO model"],
        ),
    ];
    for (below, files, words) in cases {
        let folder = Folder::new();
        if below != "." {
            fs::create_dir(folder.path(below)).unwrap();
        }
        folder.write("config.json", b"{}");
        for (name, bytes) in files {
            folder.write(name, bytes);
        }
        let error = TensorFiles::open(folder.root()).unwrap_err();
        assert_says(&error, words);
        // Weights that can be read go before.
        folder.write("model.safetensors", &valid());
        assert!(TensorFiles::open(folder.root()).is_ok());
    }
}

#[test]
fn a_directory_that_may_not_be_listed_is_named() {
    let folder = Folder::new();
    let closed = folder.path("closed");
    fs::create_dir(&closed).unwrap();
    #[cfg(unix)]
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    let error = TensorFiles::open(&closed).unwrap_err();
    // A superuser may list it all the same, and finds it empty.
    let may_list = fs::read_dir(&closed).is_ok();
    assert_eq!(
        matches!(error, Error::NoWeights { .. }),
        may_list,
        "{error:?}"
    );
    assert_eq!(matches!(error, Error::Io { .. }), !may_list, "{error:?}");
    assert_says(&error, &["closed"]);
}

#[test]
fn several_files_without_an_index_are_named() {
    let folder = Folder::new();
    folder.write("b.safetensors", &valid());
    folder.write("a.safetensors", &valid());
    let error = TensorFiles::open(folder.root()).unwrap_err();
    assert!(matches!(error, Error::NoWeights { .. }), "{error:?}");
    assert_says(
        &error,
        &["a.safetensors, b.safetensors", "open one of them"],
    );
}

#[test]
fn shards_of_pytorch_without_an_index_ask_for_it() {
    let folder = Folder::new();
    for i in 1..=2 {
        folder.write(&format!("pytorch_model-0000{i}-of-00002.bin"), b"PK");
    }
    let error = TensorFiles::open(folder.root()).unwrap_err();
    assert_says(
        &error,
        &[
            "several files, none of which is called model.safetensors or pytorch_model.bin",
            "add pytorch_model.bin.index.json",
        ],
    );
}

/// Repositories of sentence-transformers before version 2 and of several GGUF quantizations have their weights in folders.
#[test]
fn weights_in_a_folder_below_are_named() {
    for (below, file) in [("0_BERT", "model.safetensors"), ("Q4_K_M", "m.gguf")] {
        let folder = Folder::new();
        fs::create_dir(folder.path("1_Pooling")).unwrap();
        fs::create_dir(folder.path(below)).unwrap();
        folder.write(&format!("{below}/{file}"), &valid());
        let error = TensorFiles::open(folder.root()).unwrap_err();
        assert_says(&error, &["such as", below]);
    }
}

/// transformers reads the file that `transformers_weights` names, and no other.
#[test]
fn weights_that_the_configuration_names_are_read() {
    let named = |name: &str| {
        let folder = Folder::new();
        folder.write("model.safetensors", &valid());
        let bytes = safetensors::serialize::<&str, safetensors::tensor::TensorView, _>([], None);
        folder.write("other.safetensors", &bytes.unwrap());
        let config = format!(r#"{{"transformers_weights": {name}}}"#);
        folder.write("config.json", config.as_bytes());
        let n = TensorFiles::open(folder.root()).map(|files| files.names().count());
        n.map_err(|error| error.to_string())
    };
    assert_eq!(named(r#""other.safetensors""#), Ok(0));
    assert_ne!(named("null"), Ok(0));
    for wrong in [
        r#""absent.safetensors""#,
        r#""../other.safetensors""#,
        r#""other.bin""#,
        "3",
    ] {
        assert_says(
            named(wrong).unwrap_err(),
            &["transformers_weights", "remove the key"],
        );
    }
}

#[test]
fn an_empty_list_of_files_is_an_error() {
    let error = TensorFiles::open_files(vec![]).unwrap_err();
    assert!(matches!(error, Error::NoWeights { .. }), "{error:?}");
}

#[test]
fn a_tensor_in_two_files_is_an_error() {
    let folder = Folder::new();
    let paths = ["a.safetensors", "b.safetensors"].map(|name| folder.write(name, &valid()));
    let error = TensorFiles::open_files(paths.to_vec()).unwrap_err();
    assert!(matches!(error, Error::BadIndex { .. }), "{error:?}");
    assert_says(&error, &["a.safetensors", "b.safetensors", "is also in"]);
}

#[test]
fn a_malformed_index_is_refused() {
    for json in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"weight_map":3}"#,
        r#"{"weight_map":{"a":1}}"#,
        "\u{0}",
    ] {
        let folder = Folder::new();
        let path = folder.write(INDEX, json.as_bytes());
        let error = TensorFiles::open(&path).unwrap_err();
        let is_json = json.starts_with(['[', '{']) && json != "{";
        match is_json {
            true => assert!(matches!(error, Error::BadIndex { .. }), "{error:?}"),
            false => assert!(matches!(error, Error::MalformedJson { .. }), "{error:?}"),
        }
        assert_says(&error, &[INDEX, "weight_map"]);
    }
}

#[test]
fn an_index_of_nothing_is_refused() {
    bad_index(r#"{"weight_map":{}}"#, &["lists no tensor"]);
}

#[test]
fn an_index_cannot_name_files_outside_its_directory() {
    for shard in [
        "/etc/passwd",
        "../m.safetensors",
        "a/../../m.safetensors",
        "",
    ] {
        let json = format!(r#"{{"weight_map":{{"down.weight":"{shard}"}}}}"#);
        bad_index(&json, &["down.weight", &format!("{shard:?}"), "outside"]);
    }
}

#[test]
fn missing_shards_are_named() {
    bad_index(
        r#"{"weight_map":{"down.weight":"m.safetensors","x":"n.safetensors","y":"n.safetensors"}}"#,
        &["1 of its 2 shards are missing: n.safetensors", "download"],
    );
}

#[test]
fn a_tensor_that_its_shard_lacks_is_named() {
    bad_index(
        r#"{"weight_map":{"down.weight":"m.safetensors","gone":"m.safetensors"}}"#,
        &["\"gone\"", "m.safetensors, which does not contain it"],
    );
}

#[test]
fn tensors_that_the_index_does_not_list_are_not_visible() {
    let folder = Folder::new();
    folder.write("m.safetensors", &valid());
    folder.write(
        INDEX,
        br#"{"weight_map":{"down.weight":"./m.safetensors"}}"#,
    );
    let files = TensorFiles::open(folder.path(INDEX)).unwrap();
    assert_eq!(files.names().collect::<Vec<_>>(), ["down.weight"]);
}

/// This index, beside the shard `m.safetensors`, is refused for these reasons.
fn bad_index(json: &str, reasons: &[&str]) {
    let folder = Folder::new();
    folder.write("m.safetensors", &valid());
    let error = TensorFiles::open(folder.write(INDEX, json.as_bytes())).unwrap_err();
    assert!(matches!(error, Error::BadIndex { .. }), "{error:?}");
    assert_says(&error, &[INDEX]);
    assert_says(&error, reasons);
}
