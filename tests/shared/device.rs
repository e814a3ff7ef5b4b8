//! The device under test.

use std::sync::OnceLock;

use candle_blocks::candle_core::Device;

/// Names the device under test.
pub const DEVICE_VARIABLE: &str = "CANDLE_BLOCKS_TEST_DEVICE";

/// The message with which a test fails on the device `absent`; `absent.rs` expects it of every test.
pub const ABSENT: &str = "the device under test is absent";

/// Returns the name of the device under test, or fails if that is `absent`.
pub fn name() -> String {
    let name = std::env::var(DEVICE_VARIABLE).unwrap_or_else(|_| "cpu".to_string());
    assert!(name != "absent", "{DEVICE_VARIABLE}={name}: {ABSENT}");
    name
}

/// The device that `CANDLE_BLOCKS_TEST_DEVICE` names: `cpu` (default), `cuda`, `cuda-one-stream` or `metal`.
pub fn device() -> Device {
    // One for all: candle takes two handles of one GPU for two devices.
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let open = || {
        let name = name();
        let device = match name.as_str() {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Device::new_cuda(0),
            // `new_cuda` gives each host thread a stream of its own.
            "cuda-one-stream" => Device::new_cuda_with_stream(0),
            "metal" => Device::new_metal(0),
            _ => panic!("{DEVICE_VARIABLE}={name}: expected cpu, cuda or metal"),
        };
        device.unwrap_or_else(|error| panic!("{DEVICE_VARIABLE}={name}: {error}"))
    };
    DEVICE.get_or_init(open).clone()
}
