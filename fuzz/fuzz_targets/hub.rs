//! Repository, revision and file names, with an empty cache.

#![no_main]

use std::fs;

use candle_blocks::checkpoint::hub::{Hub, Network};
use candle_blocks_fuzz::{Folder, files, said};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let names: Vec<_> = files(data)
        .into_iter()
        .map(String::from_utf8_lossy)
        .collect();
    let [repo, revision, file] = &names[..] else {
        return;
    };
    let folder = Folder::new();
    let cache = folder.root().join("cache");
    let hub = Hub::new(&**repo)
        .revision(&**revision)
        .cache_dir(&cache)
        .network(Network::Offline);
    said(hub.file(file).map(drop)).map(|()| panic!("found {file:?} in an empty cache"));
    said(hub.download().map(drop)).map(|()| panic!("found {repo:?} in an empty cache"));
    let beside: Vec<_> = fs::read_dir(folder.root()).unwrap().flatten().collect();
    assert!(
        beside.iter().all(|entry| entry.file_name() == "cache"),
        "{beside:?}"
    );
});
