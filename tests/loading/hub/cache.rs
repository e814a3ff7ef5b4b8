//! The cache of the Hub: what is in it is whole, is not fetched again, and serves without a network. As in `downloads.rs`, the
//! server and the cache are a test's own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};

use super::{
    server::Fault,
    setup::{
        INDEX, SHARDS, Setup, WEIGHTS, commit, contents, files_below, only, refusal, safetensors,
        sharded, single,
    },
};

#[test]
fn a_second_download_fetches_no_body_again() -> Result<()> {
    let setup = Setup::new(single()?)?;
    let first = setup.hub().download()?;
    let bodies = setup.server.bodies();
    assert_eq!(bodies.len(), 3, "{bodies:?}");
    assert_eq!(setup.hub().download()?, first);
    assert_eq!(setup.server.bodies(), bodies);
    Ok(())
}

/// Follows Python's client: a file's content is stored under its `ETag` without quotes and prefix, and the snapshot has a link
/// to it.
#[cfg(unix)]
#[test]
fn contents_have_the_names_that_huggingface_hub_gives_them() -> Result<()> {
    let blobs = |before_etag| -> Result<Vec<_>> {
        let setup = Setup::new(single()?)?;
        setup.server.repo().before_etag = before_etag;
        let snapshot = setup.hub().download()?;
        let folder = setup.cache.path().join("models--owner--tiny");
        let mut names = Vec::new();
        for file in files_below(&snapshot)? {
            let target = std::fs::read_link(&file)?;
            let blob = target.file_name().context("a blob")?.to_owned();
            assert_eq!(target, std::path::Path::new("../../blobs").join(&blob));
            assert!(folder.join("blobs").join(&blob).is_file());
            names.push(blob.into_string().unwrap_or_default());
        }
        names.sort();
        Ok(names)
    };
    let names = blobs("")?;
    let is_hash = |name: &String| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(names.len() == 3 && names.iter().all(is_hash), "{names:?}");
    assert_eq!(blobs("W/")?, names);
    Ok(())
}

/// A cache in a container's image is read-only.
#[cfg(unix)]
#[test]
fn nothing_is_written_to_a_warm_cache() -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let setup = Setup::new(single()?)?;
    let changes = || -> Result<Vec<_>> {
        let files = files_below(setup.cache.path())?.into_iter();
        let change = |path: std::path::PathBuf| {
            let found = path.symlink_metadata()?;
            Ok((path, found.ctime(), found.ctime_nsec()))
        };
        files.map(change).collect()
    };
    setup.hub().download()?;
    let before = changes()?;
    assert!(before.iter().any(|(path, ..)| path.ends_with("refs/main")));
    std::thread::sleep(std::time::Duration::from_millis(20));
    setup.hub().download()?;
    setup.hub().file("tokenizer.json")?;
    assert_eq!(changes()?, before);
    Ok(())
}

#[test]
fn callers_that_start_together_fetch_each_body_once() -> Result<()> {
    let mut files = single()?;
    files.insert(WEIGHTS.into(), safetensors("w", 3, 8_000_000)?);
    let setup = Setup::new(files)?;
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| setup.hub().download()))
            .collect();
        for caller in callers {
            let snapshot = caller.join().ok().context("no panic")??;
            assert_eq!(contents(&snapshot)?.len(), 3);
        }
        let bodies = setup.server.bodies();
        assert_eq!(bodies.len(), 3, "{bodies:?}");
        Ok(())
    })
}

#[test]
fn a_download_waits_for_another_process_however_long_that_takes() -> Result<()> {
    let setup = Setup::new(single()?)?;
    setup.hub().download()?;
    // The other process holds the locks that a download leaves.
    let locks = files_below(&setup.cache.path().join(".locks"))?;
    assert_eq!(locks.len(), 3);
    std::fs::remove_dir_all(setup.cache.path().join("models--owner--tiny"))?;
    let held = locks.iter().map(std::fs::File::open);
    let held = held.collect::<std::io::Result<Vec<_>>>()?;
    for lock in &held {
        lock.lock()?;
    }
    let other = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(held);
    });
    let snapshot = setup.hub().download();
    assert!(other.is_finished() && other.join().is_ok());
    assert_eq!(contents(&snapshot?)?.len(), 3);
    Ok(())
}

#[test]
fn nothing_of_a_body_that_breaks_off_is_ever_used() -> Result<()> {
    for fault in [
        Fault::Truncated,
        Fault::Cut,
        Fault::EndsEarly,
        Fault::ErrorPage(403),
    ] {
        let files = single()?;
        let setup = Setup::new(files.clone())?;
        for broken in [WEIGHTS, "config.json"] {
            setup.server.repo().faults = HashMap::from([(broken.into(), fault)]);
            let reason =
                refusal(setup.hub().download()).with_context(|| format!("{broken}, {fault:?}"))?;
            let said = match fault {
                Fault::ErrorPage(_) => "answered 403",
                _ => "try again",
            };
            assert!(
                reason.contains(broken) && reason.contains(said),
                "{fault:?}: {reason}"
            );
            if broken == WEIGHTS {
                setup.assert_absent(WEIGHTS, &files[WEIGHTS])?;
                std::fs::remove_dir_all(setup.cache.path().join("models--owner--tiny"))?;
            }
        }
        assert!(refusal(setup.offline().download())?.contains("offline"));

        setup.server.repo().faults.clear();
        let snapshot = setup.hub().download()?;
        assert_eq!(
            contents(&snapshot)?,
            only(&files, &["config.json", "tokenizer.json", WEIGHTS])
        );
    }
    Ok(())
}

#[test]
fn a_failed_update_leaves_the_last_whole_snapshot_in_place() -> Result<()> {
    let old = single()?;
    let setup = Setup::new(old.clone())?;
    let before = setup.hub().download()?;
    {
        let mut repo = setup.server.repo();
        let mut new = single()?;
        new.insert(WEIGHTS.into(), safetensors("w", 9, 100_000)?);
        repo.commits.insert(commit('b'), new);
        repo.revisions.insert("main".into(), commit('b'));
        repo.faults.insert(WEIGHTS.into(), Fault::Cut);
    }
    // An error, not the old weights in silence.
    assert!(refusal(setup.hub().download())?.contains("was cut"));
    assert_eq!(setup.offline().download()?, before);
    assert_eq!(contents(&before)?[WEIGHTS], old[WEIGHTS]);

    setup.server.repo().faults.clear();
    let after = setup.hub().download()?;
    assert_eq!(
        std::fs::read(after.join(WEIGHTS))?,
        safetensors("w", 9, 100_000)?
    );
    assert_eq!(setup.offline().download()?, after);
    Ok(())
}

#[test]
fn a_damaged_file_in_the_cache_is_refused_offline_and_replaced_online() -> Result<()> {
    let files = single()?;
    let setup = Setup::new(files.clone())?;
    let snapshot = setup.hub().download()?;
    for damaged in [WEIGHTS, "config.json", "tokenizer.json"] {
        let blob = snapshot.join(damaged).canonicalize()?;
        std::fs::write(&blob, &files[damaged][..files[damaged].len() - 1])?;
        assert!(refusal(setup.offline().download())?.contains(damaged));
        assert!(refusal(setup.offline().file(damaged))?.contains(damaged));
        assert_eq!(setup.hub().download()?, snapshot);
        assert_eq!(std::fs::read(snapshot.join(damaged))?, files[damaged]);

        std::fs::remove_file(&snapshot.join(damaged).canonicalize()?)?;
        assert_eq!(setup.hub().download()?, snapshot);
        assert_eq!(std::fs::read(snapshot.join(damaged))?, files[damaged]);
    }
    Ok(())
}

#[test]
fn offline_a_warm_cache_needs_no_request() -> Result<()> {
    for files in [single()?, sharded(SHARDS)?] {
        let setup = Setup::new(files)?;
        let snapshot = setup.hub().download()?;
        let n_requests = setup.server.requests().len();
        assert_eq!(setup.offline().download()?, snapshot);
        assert_eq!(setup.offline().revision(commit('a')).download()?, snapshot);
        assert_eq!(
            setup.offline().file("config.json")?,
            snapshot.join("config.json")
        );
        assert_eq!(setup.server.requests().len(), n_requests);
    }
    Ok(())
}

#[test]
fn offline_a_cold_or_partial_cache_is_an_error_that_names_what_is_missing() -> Result<()> {
    let setup = Setup::new(sharded(SHARDS)?)?;
    let reason = refusal(setup.offline().download())?;
    assert!(
        reason.contains("does not know the revision") && reason.contains("HF_HUB_OFFLINE"),
        "{reason}"
    );
    assert_eq!(setup.server.requests(), []);

    let snapshot = setup.hub().download()?;
    for missing in ["config.json", SHARDS[1], INDEX] {
        let aside = snapshot.join("aside");
        std::fs::rename(snapshot.join(missing), &aside)?;
        let reason = refusal(setup.offline().download())?;
        let named = if missing == INDEX { WEIGHTS } else { missing };
        assert!(reason.contains(&format!("has no {named}")), "{reason}");
        std::fs::rename(&aside, snapshot.join(missing))?;
    }
    assert_eq!(setup.offline().download()?, snapshot);
    Ok(())
}

#[test]
fn without_network_a_whole_cached_snapshot_is_used_and_reported() -> Result<()> {
    let setup = Setup::new(single()?)?;
    let snapshot = setup.hub().download()?;
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let hub = setup.hub().progress(move |event| {
        if let Ok(mut seen) = seen.lock() {
            seen.push(format!("{event:?}"));
        }
    });
    setup.server.repo().refuse = Some((503, ""));
    assert_eq!(hub.download()?, snapshot);
    // A refusal is an answer: the cache does not stand in for it.
    setup.server.repo().refuse = Some((401, ""));
    assert!(refusal(hub.download())?.contains("401"));

    let Setup { server, cache } = setup;
    drop(server);
    assert_eq!(hub.download()?, snapshot);
    assert!(refusal(hub.file("README.md"))?.contains("no connection"));
    let cold = tempfile::tempdir()?;
    let reason = refusal(hub.cache_dir(cold.path()).download())?;
    assert!(
        reason.contains("no connection") && reason.contains("does not know the revision"),
        "{reason}"
    );

    let events = events
        .lock()
        .map_err(|_| anyhow::anyhow!("a handler panicked"))?;
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(
        events[0].contains("CacheUsed") && events[0].contains("503"),
        "{events:?}"
    );
    assert!(
        events[1].contains("CacheUsed") && events[1].contains("no connection"),
        "{events:?}"
    );
    drop(cache);
    Ok(())
}

/// A cache may belong to several users.
#[test]
#[cfg(unix)]
fn whoever_may_read_a_snapshot_may_read_what_revision_it_is() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let setup = Setup::new(single()?)?;
    setup.hub().download()?;
    let ordinary = setup.cache.path().join("ordinary");
    std::fs::write(&ordinary, b"")?;
    let refs = setup.cache.path().join("models--owner--tiny/refs/main");
    let mode = |path| std::fs::metadata(path).map(|found| found.permissions().mode());
    assert_eq!(mode(&refs)?, mode(&ordinary)?);
    Ok(())
}
