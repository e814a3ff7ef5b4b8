//! `examples/fine_tune.rs` trains what it says, and nothing else.

use candle_blocks::{
    Checkpoint, Weights,
    candle_core::{DType, Device},
};

use crate::{fine_tune, numbers::bits, weights::weights};

#[test]
fn a_feed_forward_is_fine_tuned_whole_and_by_adapters() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    for run in [fine_tune::full, fine_tune::lora] {
        let (before, after) = run(&checkpoint, folder.path(), 40).unwrap();
        assert!(after < 0.97 * before, "{before} {after}");
    }
    for (name, n_changed) in [("full", 3 * 4), ("lora", 3 * 2)] {
        let saved = Checkpoint::open(folder.path().join(name)).unwrap();
        let read =
            |checkpoint: &Checkpoint, name: &str| bits(&checkpoint.files().read(name).unwrap());
        let differs = |name: &&str| read(&saved, name) != read(&checkpoint, name);
        let changed: Vec<&str> = checkpoint.files().names().filter(differs).collect();
        assert_eq!(changed.len(), n_changed, "{changed:?}");
        let is_feed_forward =
            |name: &&str| name.contains("intermediate") || !name.contains("attention");
        assert!(changed.iter().all(is_feed_forward), "{changed:?}");
        assert!(
            saved
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .stack()
                .is_ok()
        );
    }
}
