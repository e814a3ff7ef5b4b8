//! Downloads from the Hub: the real client over HTTP against a server that each test starts on 127.0.0.1, with a cache
//! directory of its own. No test reaches the internet. (A proxy in `HTTP_PROXY` must except 127.0.0.1 in `NO_PROXY`.)

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use candle_blocks::Error;
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::checkpoint::hub::HubEvent;

use super::{
    server::{Files, Repo},
    setup::{
        INDEX, PICKLE, REPO, SHARDS, Setup, WEIGHTS, commit, contents, files_below, only, refusal,
        safetensors, sharded, single,
    },
};

#[test]
fn a_single_file_checkpoint_arrives_with_its_config_and_tokenizer_and_nothing_else() -> Result<()> {
    let files = single()?;
    let setup = Setup::new(files.clone())?;
    let snapshot = setup.hub().download()?;
    assert_eq!(
        contents(&snapshot)?,
        only(&files, &["config.json", "tokenizer.json", WEIGHTS])
    );
    // The folder that Python's huggingface_hub uses.
    let folder = setup.cache.path().join("models--owner--tiny");
    assert_eq!(snapshot, folder.join("snapshots").join(commit('a')));
    assert_eq!(
        std::fs::read_to_string(folder.join("refs/main"))?,
        commit('a')
    );
    Ok(())
}

#[test]
fn the_files_of_listed_modules_are_downloaded() -> Result<()> {
    let mut files = single()?;
    let names = [
        "modules.json",
        "tokenizer_config.json",
        "config_sentence_transformers.json",
    ];
    for name in names {
        let text = if name == names[0] { "[]" } else { "{}" };
        files.insert(name.into(), text.as_bytes().to_vec());
    }
    files.insert("2_Dense/config.json".into(), b"{}".to_vec());
    files.insert(
        "2_Dense/model.safetensors".into(),
        safetensors("linear.weight", 6, 64)?,
    );
    files.insert("2_Dense/pytorch_model.bin".into(), vec![1; 64]);
    let setup = Setup::new(files.clone())?;
    let modules = [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ];
    let all = [
        &names[..],
        &modules,
        &["config.json", "tokenizer.json", WEIGHTS],
    ]
    .concat();
    assert_eq!(contents(&setup.hub().download()?)?, only(&files, &all));
    Ok(())
}

/// The first module of a CLIP or of a static embedding lies in a folder, and nothing in the repository's own.
#[test]
fn a_model_in_the_folder_of_its_module_arrives() -> Result<()> {
    let modules = |folder: &str| {
        format!(r#"[{{"path": "{folder}", "type": "Any"}}, {{"path": "1_Pooling"}}]"#)
    };
    for (folder, wanted) in [
        (
            "0_CLIPModel",
            &[
                "config.json",
                "preprocessor_config.json",
                "tokenizer.json",
                WEIGHTS,
            ][..],
        ),
        ("0_StaticEmbedding", &["tokenizer.json", WEIGHTS]),
    ] {
        let mut files = Files::from([
            ("modules.json".into(), modules(folder).into_bytes()),
            ("1_Pooling/config.json".into(), b"{}".to_vec()),
            ("README.md".into(), b"# Tiny".to_vec()),
        ]);
        for name in wanted.iter().chain(&["pytorch_model.bin", "notes.txt"]) {
            let text = match *name {
                WEIGHTS => safetensors("w", 3, 1000)?,
                _ => b"{}".to_vec(),
            };
            files.insert(format!("{folder}/{name}"), text);
        }
        let setup = Setup::new(files.clone())?;
        let missing = refusal(setup.offline().download())?;
        assert!(missing.contains("offline"), "{missing}");
        let own: Vec<String> = wanted
            .iter()
            .map(|name| format!("{folder}/{name}"))
            .collect();
        let own = own.iter().map(String::as_str);
        let expected: Vec<&str> = ["modules.json", "1_Pooling/config.json"]
            .into_iter()
            .chain(own)
            .collect();
        let snapshot = setup.hub().download()?;
        assert_eq!(contents(&snapshot)?, only(&files, &expected), "{folder}");
        assert_eq!(setup.offline().download()?, snapshot);
        std::fs::remove_file(snapshot.join(folder).join(WEIGHTS))?;
        let missing = refusal(setup.offline().download())?;
        assert!(
            missing.contains(&format!("{folder}/{WEIGHTS}")),
            "{missing}"
        );
    }
    let setup = Setup::new(Files::from([(
        "modules.json".into(),
        modules("../a").into_bytes(),
    )]))?;
    let error = setup.hub().download().unwrap_err().to_string();
    assert!(error.contains("outside the repository"), "{error}");
    Ok(())
}

/// How images and sound are read, and a speech model's letters. Other models have theirs in `tokenizer.json`.
#[test]
fn preprocessors_and_the_letters_beside_them_arrive() -> Result<()> {
    let mut files = single()?;
    files.insert("vocab.json".into(), b"{}".to_vec());
    let usual = ["config.json", "tokenizer.json", WEIGHTS];
    let fetched = |files: &Files| contents(&Setup::new(files.clone())?.hub().download()?);
    assert_eq!(fetched(&files)?, only(&files, &usual[..]));
    files.insert("preprocessor_config.json".into(), b"{}".to_vec());
    let all = [&usual[..], &["vocab.json", "preprocessor_config.json"]].concat();
    assert_eq!(fetched(&files)?, only(&files, &all));
    Ok(())
}

#[test]
fn every_shard_of_a_sharded_checkpoint_arrives() -> Result<()> {
    let files = sharded(SHARDS)?;
    let setup = Setup::new(files.clone())?;
    let snapshot = setup.hub().download()?;
    assert_eq!(contents(&snapshot)?, files);
    Ok(())
}

#[test]
fn a_name_without_an_owner_is_a_repository_too() -> Result<()> {
    let setup = Setup::new(single()?)?;
    setup.server.repo().id = "tiny".into();
    let snapshot = setup.hub_of("tiny").download()?;
    assert!(snapshot.starts_with(setup.cache.path().join("models--tiny")));
    Ok(())
}

#[test]
fn one_more_file_is_fetched_by_name() -> Result<()> {
    let setup = Setup::new(single()?)?;
    let path = setup.hub().file("1_Pooling/config.json")?;
    assert_eq!(std::fs::read(&path)?, b"{}");
    assert_eq!(setup.offline().file("1_Pooling/config.json")?, path);
    let reason = refusal(setup.hub().file("vocab.txt"))?;
    assert!(
        reason.contains("no file vocab.txt") && reason.contains("tokenizer.json"),
        "{reason}"
    );
    for outside in ["../config.json", "/etc/hostname", ""] {
        let n_requests = setup.server.requests().len();
        let reason = refusal(setup.hub().file(outside))?;
        assert!(reason.contains("not a path inside"), "{reason}");
        assert_eq!(setup.server.requests().len(), n_requests);
    }
    Ok(())
}

#[test]
fn the_requested_revision_is_downloaded() -> Result<()> {
    let (old, new) = (single()?, sharded(SHARDS)?);
    let setup = Setup::with(Repo {
        id: REPO.into(),
        revisions: BTreeMap::from([
            ("main".into(), commit('b')),
            ("v1".into(), commit('a')),
            ("refs/pr/1".into(), commit('a')),
        ]),
        commits: BTreeMap::from([(commit('a'), old), (commit('b'), new)]),
        ..Repo::default()
    })?;
    let main = setup.hub().download()?;
    assert!(main.ends_with(commit('b')) && main.join(INDEX).exists());
    for revision in ["v1", "refs/pr/1"] {
        let snapshot = setup.hub().revision(revision).download()?;
        assert!(snapshot.ends_with(commit('a')) && snapshot.join(WEIGHTS).exists());
        assert_eq!(setup.offline().revision(revision).download()?, snapshot);
    }
    assert_eq!(setup.offline().download()?, main);
    // A commit hash names the same files for ever: a warm cache needs no request.
    let n_requests = setup.server.requests().len();
    assert_eq!(setup.hub().revision(commit('b')).download()?, main);
    assert_eq!(setup.server.requests().len(), n_requests);
    Ok(())
}

#[test]
fn a_repository_that_does_not_exist_is_named_as_such() -> Result<()> {
    let setup = Setup::new(single()?)?;
    let reason = refusal(setup.hub_of("owner/tyni").download())?;
    assert!(
        reason.contains("404") && reason.contains("no such repository"),
        "{reason}"
    );
    let reason = refusal(setup.hub().revision("v9").download())?;
    assert!(
        reason.contains("404") && reason.contains("no revision v9"),
        "{reason}"
    );
    let reason = refusal(setup.hub().revision(commit('f')).download())?;
    assert!(reason.contains("no revision ffff"), "{reason}");
    assert_eq!(files_below(setup.cache.path())?, Vec::<PathBuf>::new());
    Ok(())
}

#[test]
fn names_that_cannot_be_repositories_send_no_request() -> Result<()> {
    let setup = Setup::new(single()?)?;
    for bad in ["", "../etc", "a/b/c", "https://example.org/a"] {
        assert!(
            refusal(setup.hub_of(bad).download())?.contains("owner/name"),
            "{bad}"
        );
    }
    assert!(refusal(setup.hub().revision("../../x").download())?.contains("not a revision"));
    assert!(refusal(setup.hub().token("hf_\u{e9}").download())?.contains("token"));
    assert_eq!(setup.server.requests(), []);
    Ok(())
}

#[test]
fn a_repository_with_foreign_weights_only_is_refused_with_the_cure() -> Result<()> {
    let mut files = single()?;
    files.remove(WEIGHTS);
    files.remove(PICKLE);
    let setup = Setup::new(files)?;
    let reason = refusal(setup.hub().download())?;
    for part in ["onnx/model.onnx", "safetensors/convert", "Hub::revision"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(files_below(setup.cache.path())?, Vec::<PathBuf>::new());
    Ok(())
}

#[test]
fn pytorch_s_weights_arrive_where_there_are_no_safetensors() -> Result<()> {
    let mut files = single()?;
    files.remove(WEIGHTS);
    files.insert("modules.json".into(), b"[]".to_vec());
    files.insert("2_Dense/pytorch_model.bin".into(), vec![1; 64]);
    files.insert("training_args.bin".into(), vec![1; 64]);
    let setup = Setup::new(files.clone())?;
    let expected = only(
        &files,
        &[
            "config.json",
            "tokenizer.json",
            "modules.json",
            "1_Pooling/config.json",
            "2_Dense/pytorch_model.bin",
            PICKLE,
        ],
    );
    assert_eq!(contents(&setup.hub().download()?)?, expected);
    assert_eq!(contents(&setup.offline().download()?)?, expected);
    Ok(())
}

#[test]
fn every_shard_of_pytorch_s_weights_arrives() -> Result<()> {
    let shards = [
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model-00002-of-00002.bin",
    ];
    let index = serde_json::json!({"weight_map": {"a": shards[0], "b": shards[1]}});
    let mut files = Files::from([
        ("config.json".into(), br#"{"model_type": "gpt2"}"#.to_vec()),
        (
            "pytorch_model.bin.index.json".into(),
            index.to_string().into_bytes(),
        ),
    ]);
    files.extend(shards.map(|shard| (shard.into(), vec![7; 100])));
    let setup = Setup::new(files.clone())?;
    assert_eq!(contents(&setup.hub().download()?)?, files);
    assert_eq!(contents(&setup.offline().download()?)?, files);
    // An archive that breaks off is is incomplete, and is not used.
    files.insert(shards[1].into(), b"PK\x03\x04 and more".to_vec());
    let setup = Setup::new(files)?;
    let reason = refusal(setup.hub().download())?;
    assert!(
        reason.contains(shards[1]) && reason.contains("is incomplete"),
        "{reason}"
    );
    Ok(())
}

/// transformers' `from_pretrained` then asks for no other file.
#[test]
fn weights_that_the_configuration_names_arrive_and_no_others() -> Result<()> {
    let config =
        |name: &str| serde_json::json!({"model_type": "bert", "transformers_weights": name});
    let index = serde_json::json!({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}});
    let (other, own_index) = ("other.safetensors", "own/other.safetensors.index.json");
    let [one, two] = SHARDS.map(|shard| format!("own/{shard}"));
    let mut files = single()?;
    files.insert(other.into(), safetensors("w", 9, 5_000)?);
    files.insert(own_index.into(), index.to_string().into_bytes());
    files.insert(one.clone(), safetensors("a", 4, 5_000)?);
    files.insert(two.clone(), safetensors("b", 5, 7_000)?);
    for (name, arrive) in [
        (other, vec![other]),
        (own_index, vec![own_index, &one, &two]),
    ] {
        let mut files = files.clone();
        files.insert("config.json".into(), config(name).to_string().into_bytes());
        let setup = Setup::new(files.clone())?;
        let expected = only(
            &files,
            &[&["config.json", "tokenizer.json"], &arrive[..]].concat(),
        );
        let snapshot = setup.hub().download()?;
        assert_eq!(contents(&snapshot)?, expected, "{name}");
        assert_eq!(contents(&setup.offline().download()?)?, expected, "{name}");
        assert!(TensorFiles::open(&snapshot)?.names().count() > 0);
        // Without it, the snapshot is not whole.
        let last = arrive[arrive.len() - 1];
        std::fs::remove_file(snapshot.join(last))?;
        let reason = refusal(setup.offline().download())?;
        assert!(reason.contains(&format!("has no {last}")), "{reason}");
    }
    for (name, part) in [
        ("absent.safetensors", "no file absent.safetensors"),
        ("../w.safetensors", "remove the key"),
    ] {
        files.insert("config.json".into(), config(name).to_string().into_bytes());
        let error = Setup::new(files.clone())?.hub().download().err();
        let message = error.context("it is refused")?.to_string();
        assert!(
            message.contains(name) && message.contains(part),
            "{message}"
        );
    }
    Ok(())
}

#[test]
fn weights_as_in_the_publisher_s_own_code_are_refused_with_the_cure() -> Result<()> {
    let mut files = single()?;
    for name in [WEIGHTS, PICKLE, "config.json"] {
        files.remove(name);
    }
    for name in ["consolidated.safetensors", "original/consolidated.00.pth"] {
        let mut files = files.clone();
        files.insert(name.into(), safetensors("w", 3, 100)?);
        let reason = refusal(Setup::new(files)?.hub().download())?;
        for part in [name, "params.json", "convert_mistral_weights_to_hf"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
    Ok(())
}

#[test]
fn a_repository_without_a_config_is_refused() -> Result<()> {
    let mut files = single()?;
    files.remove("config.json");
    let setup = Setup::new(files)?;
    assert!(refusal(setup.hub().download())?.contains("no file config.json"));
    Ok(())
}

#[test]
fn a_wrong_token_is_refused_and_the_right_one_is_sent_with_every_request() -> Result<()> {
    let setup = Setup::new(single()?)?;
    setup.server.repo().token = Some("hf_right".into());
    let reason = refusal(setup.hub().token("hf_wrong").download())?;
    for part in ["401", "HF_TOKEN", "Hub::token"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert!(!reason.contains("hf_wrong"), "{reason}");
    let refused = setup.server.requests();
    assert!(
        refused
            .iter()
            .all(|request| request.authorization.as_deref() == Some("Bearer hf_wrong"))
    );

    setup.hub().token("hf_right\n").download()?;
    let accepted = &setup.server.requests()[refused.len()..];
    assert!(!accepted.is_empty());
    assert!(
        accepted
            .iter()
            .all(|request| request.authorization.as_deref() == Some("Bearer hf_right"))
    );
    Ok(())
}

#[test]
fn the_token_is_not_sent_to_another_host_from_which_contents_come() -> Result<()> {
    let setup = Setup::new(single()?)?;
    let contents = Setup::new(single()?)?;
    setup.server.repo().token = Some("hf_right".into());
    setup.server.repo().contents_at = Some(contents.server.url());
    setup.hub().token("hf_right").download()?;
    let elsewhere = contents.server.requests();
    assert_eq!(elsewhere.len(), 1, "{elsewhere:?}");
    assert!(elsewhere[0].path.starts_with("/cdn/"));
    assert_eq!(elsewhere[0].authorization, None);
    Ok(())
}

#[test]
fn files_that_change_what_is_computed_arrive_with_the_weights() -> Result<()> {
    let mut files = single()?;
    let names = [
        "special_tokens_map.json",
        "added_tokens.json",
        "quantize_config.json",
        "sentence_xlm-roberta_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    ];
    files.extend(names.map(|name| (name.to_string(), b"{}".to_vec())));
    let setup = Setup::new(files.clone())?;
    let all = [&names[..], &["config.json", "tokenizer.json", WEIGHTS]].concat();
    assert_eq!(contents(&setup.hub().download()?)?, only(&files, &all));
    Ok(())
}

#[test]
fn forbidden_and_rate_limited_are_told_apart() -> Result<()> {
    let setup = Setup::new(single()?)?;
    for (status, code, words) in [
        (403, "GatedRepo", "accept its conditions"),
        (429, "", "wait a while"),
        (503, "", "try again later"),
        (418, "", "answered 418"),
    ] {
        setup.server.repo().refuse = Some((status, code));
        let reason = refusal(setup.hub().download())?;
        assert!(
            reason.contains(words) && reason.contains(&status.to_string()),
            "{reason}"
        );
    }
    Ok(())
}

#[test]
fn an_index_that_points_outside_fetches_nothing() -> Result<()> {
    for outside in [
        "../../../outside.safetensors",
        "/tmp/outside.safetensors",
        "a/../../b.safetensors",
    ] {
        let mut files = sharded([SHARDS[0], outside])?;
        // A hostile Hub lists what its index names.
        files.insert(outside.into(), safetensors("b", 6, 9)?);
        let setup = Setup::new(files)?;
        let error = setup
            .hub()
            .download()
            .err()
            .context("the index is hostile")?;
        let Error::BadIndex { path, reason } = &error else {
            bail!("expected Error::BadIndex, found {error:?}");
        };
        assert!(path.ends_with(INDEX) && reason.contains(outside), "{error}");
        assert!(reason.contains("outside the checkpoint"), "{error}");
        let bodies = setup.server.bodies();
        assert!(
            !bodies.iter().any(|path| path.ends_with(".safetensors")),
            "{bodies:?}"
        );
        assert!(refusal(setup.offline().download())?.contains("offline"));
    }
    Ok(())
}

#[test]
fn an_index_with_a_shard_that_the_repository_lacks_fetches_nothing() -> Result<()> {
    let setup = Setup::new(sharded([SHARDS[0], "model-00003-of-00002.safetensors"])?)?;
    let error = setup.hub().download().err().context("a shard is missing")?;
    assert!(matches!(error, Error::BadIndex { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("model-00003-of-00002.safetensors"),
        "{error}"
    );
    let bodies = setup.server.bodies();
    assert!(
        !bodies.iter().any(|path| path.ends_with(".safetensors")),
        "{bodies:?}"
    );
    Ok(())
}

#[test]
fn progress_counts_the_bytes_of_each_file_up_to_its_size() -> Result<()> {
    let files = single()?;
    let setup = Setup::new(files.clone())?;
    let seen = Arc::new(Mutex::new(HashMap::<String, Vec<(u64, u64)>>::new()));
    let log = Arc::clone(&seen);
    setup
        .hub()
        .progress(move |event| {
            if let (HubEvent::Progress { file, bytes, total }, Ok(mut log)) = (event, log.lock()) {
                log.entry(file.to_string())
                    .or_default()
                    .push((*bytes, *total));
            }
        })
        .download()?;
    let seen = seen
        .lock()
        .map_err(|_| anyhow::anyhow!("a handler panicked"))?;
    assert_eq!(seen.len(), 3, "{seen:?}");
    for (file, counts) in seen.iter() {
        let size = files[file].len() as u64;
        assert!(
            counts.iter().all(|&(_, total)| total == size),
            "{file}: {counts:?}"
        );
        assert!(counts.is_sorted(), "{file}: {counts:?}");
        assert_eq!(counts.last(), Some(&(size, size)), "{file}");
    }
    Ok(())
}
