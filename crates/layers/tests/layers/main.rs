//! Layers, blocks and operations against PyTorch, forward and backward, and properties that hold for any values.
//!
//! On the device under test: `devices.rs` says how it is chosen.

#[path = "../../../../tests/shared/absent.rs"]
mod absent;
#[path = "../../../../tests/shared/all.rs"]
mod all;
#[path = "../../../../tests/shared/allowance.rs"]
mod allowance;
#[path = "../../../../tests/shared/committed.rs"]
mod committed;
#[path = "../../../../tests/shared/composed.rs"]
mod composed;
#[path = "../../../../tests/shared/cpu_only.rs"]
mod cpu_only;
#[path = "../../../../tests/shared/device.rs"]
mod device;
#[path = "../../../../tests/shared/differentiated.rs"]
mod differentiated;
#[path = "../../../../tests/shared/double.rs"]
mod double;
#[path = "../../../../tests/shared/folder.rs"]
mod folder;
#[path = "../../../../tests/shared/judged.rs"]
mod judged;
#[path = "../../../../tests/shared/levels.rs"]
mod levels;
#[path = "../../../../tests/shared/message.rs"]
mod message;
#[path = "../../../../tests/shared/numbers.rs"]
mod numbers;
#[path = "../../../../tests/shared/patches.rs"]
mod patches;
#[path = "../../../../tests/shared/random.rs"]
mod random;
#[path = "../../../../tests/shared/reference.rs"]
mod reference;
#[path = "../../../../tests/shared/rehearsal.rs"]
mod rehearsal;
#[path = "../../../../tests/shared/said.rs"]
mod said;
#[path = "../../../../tests/shared/tensors.rs"]
mod tensors;
#[path = "../../../../tests/shared/types.rs"]
mod types;
#[path = "../../../../tests/shared/weights.rs"]
mod weights;

mod attention_weights;
mod counts;
mod devices;
mod dropout;
mod each_layer;
mod families;
mod family_properties;
mod feed_forward;
mod gradients;
mod instruction_sets;
mod marks_and_positions;
mod op_gradients;
mod ops;
mod parity;
mod plain_numbers;
mod properties;
mod properties_in_training;
mod public_types;
mod rehearsal_of_all;
mod subject;
mod without_a_device;
