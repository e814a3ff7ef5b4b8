//! A server that means no good, or stays silent: its headers decide nothing about the files of this machine, and no download
//! waits for ever.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{
    server::{Fault, Headers},
    setup::{INDEX, SHARDS, Setup, WEIGHTS, contents, files_below, refusal, sharded, single},
};

/// A download from a server that sends these headers for one file, and every file below a folder before and after it. The cache
/// lies in a folder of this folder.
fn refused(file: &str, headers: Headers) -> Result<String> {
    let mut setup = Setup::new(single()?)?;
    let outside = std::mem::replace(&mut setup.cache, tempfile::tempdir()?);
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "precious")?;
    let victim = victim.to_str().context("a path in UTF-8")?;
    let at_victim = |name: String| name.replace("VICTIM", victim);
    let headers = Headers {
        etag: headers.etag.map(at_victim),
        commit: headers.commit.map(at_victim),
    };
    setup.server.repo().headers.insert(file.into(), headers);
    let inner = outside.path().join("a/b/cache");
    std::fs::create_dir_all(&inner)?;
    let reason = refusal(setup.hub().cache_dir(&inner).download())?;

    assert_eq!(std::fs::read(victim)?, b"precious");
    let below = files_below(outside.path())?;
    let is_inside = |path: &&std::path::PathBuf| path.starts_with(&inner);
    let escaped: Vec<_> = below.iter().filter(|path| !is_inside(path)).collect();
    assert_eq!(escaped, [&outside.path().join("victim")], "{reason}");
    let entries = std::fs::read_dir(outside.path())?.count();
    assert_eq!(entries, 2, "{reason}");
    // Not even the cache contains any part of the file.
    assert!(!below.iter().any(|path| path.ends_with(file)), "{below:?}");
    Ok(reason)
}

#[test]
fn an_etag_that_is_no_plain_name_is_refused_and_nothing_is_written() -> Result<()> {
    let long = "a".repeat(5000);
    for etag in [
        "../../../../x",
        "..",
        ".",
        "VICTIM",
        "/x",
        "a/b",
        "a\\b",
        "C:x",
        "",
        " ",
        "a b",
        &long,
        "\u{e9}",
    ] {
        for file in ["config.json", WEIGHTS] {
            let headers = Headers {
                etag: Some(etag.into()),
                ..Headers::default()
            };
            let reason = refused(file, headers)?;
            let said = ["ETag", file, "HF_ENDPOINT"];
            assert!(
                said.iter().all(|part| reason.contains(part)),
                "{etag}: {reason}"
            );
        }
    }
    Ok(())
}

#[test]
fn another_commit_than_the_requested_one_is_refused_and_nothing_is_written() -> Result<()> {
    for commit in ["../../../../x", "/x", "VICTIM", "main", "", &"b".repeat(40)] {
        let headers = Headers {
            commit: Some(commit.into()),
            ..Headers::default()
        };
        let reason = refused("config.json", headers)?;
        let said = ["X-Repo-Commit", "config.json", &"a".repeat(40)];
        assert!(
            said.iter().all(|part| reason.contains(part)),
            "{commit}: {reason}"
        );
    }
    Ok(())
}

/// A template's name is a pattern, which a path outside the repository fits too.
#[test]
fn a_listed_template_outside_the_repository_is_left_out() -> Result<()> {
    let mut files = single()?;
    let outside = "additional_chat_templates/../../../../../escaped.jinja";
    files.insert(outside.into(), b"hostile".to_vec());
    let setup = Setup::new(files)?;
    let folder = tempfile::tempdir()?;
    let victim = folder.path().join("escaped.jinja");
    std::fs::write(&victim, "precious")?;
    let downloaded = setup
        .hub()
        .cache_dir(folder.path().join("cache"))
        .download();
    assert_eq!(std::fs::read(&victim)?, b"precious");
    assert_eq!(contents(&downloaded?)?.len(), 3);
    Ok(())
}

/// Without links each file keeps its own content.
#[test]
#[cfg(unix)]
fn one_etag_for_files_of_different_sizes_is_refused() -> Result<()> {
    let setup = Setup::new(single()?)?;
    for file in ["config.json", WEIGHTS] {
        let headers = Headers {
            etag: Some("same".into()),
            ..Headers::default()
        };
        setup.server.repo().headers.insert(file.into(), headers);
    }
    for _ in 0..2 {
        let reason = refusal(setup.hub().download())?;
        assert!(reason.contains("the same ETag"), "{reason}");
        assert!(refusal(setup.offline().download())?.contains("offline"));
    }
    Ok(())
}

#[test]
fn a_server_that_stalls_ends_in_an_error_that_names_file_and_variable() -> Result<()> {
    let time = Duration::from_millis(200);
    for (file, fault, variable) in [
        (WEIGHTS, Fault::Stalls, "HF_HUB_DOWNLOAD_TIMEOUT"),
        ("config.json", Fault::Stalls, "HF_HUB_DOWNLOAD_TIMEOUT"),
        (WEIGHTS, Fault::Silent, "HF_HUB_ETAG_TIMEOUT"),
    ] {
        let setup = Setup::new(single()?)?;
        setup.server.repo().faults = HashMap::from([(file.into(), fault)]);
        let hub = setup.hub().etag_timeout(time).download_timeout(time);
        let started = Instant::now();
        let reason = refusal(hub.download())?;
        let waited = started.elapsed();
        assert!(
            reason.contains(file) && reason.contains(variable) && reason.contains("0.2 s"),
            "{reason}"
        );
        assert!(waited >= time && waited < 20 * time, "{waited:?}");
        setup.assert_absent(file, &single()?[file])?;
        setup.server.repo().faults.clear();
        setup.hub().download()?;
    }
    Ok(())
}

#[test]
fn a_server_that_sends_on_in_a_circle_is_named_as_such() -> Result<()> {
    let setup = Setup::new(single()?)?;
    setup.server.repo().faults = HashMap::from([("config.json".into(), Fault::RedirectsInACircle)]);
    let reason = refusal(setup.hub().download())?;
    assert!(
        reason.contains("config.json") && reason.contains("redirects in a circle"),
        "{reason}"
    );
    Ok(())
}

#[test]
fn entries_of_unknown_kinds_are_left_out_of_a_listing() -> Result<()> {
    let files = sharded(SHARDS)?;
    let setup = Setup::new(files.clone())?;
    setup.server.repo().entries = vec![
        serde_json::json!({"type": "submodule", "oid": "a", "path": "other"}),
        serde_json::json!({"type": "directory", "oid": "a", "path": "onnx"}),
        serde_json::json!({"path": "x"}),
        serde_json::json!(3),
    ];
    assert_eq!(contents(&setup.hub().download()?)?, files);

    setup.server.repo().entries = vec![serde_json::json!({"type": "file", "path": INDEX})];
    let reason = refusal(setup.hub().download())?;
    assert!(reason.contains("without path or size"), "{reason}");
    Ok(())
}
