//! Layers, blocks and operations against PyTorch, forward and backward, and properties that hold for any values.
//!
//! On the device under test: `devices.rs` says how it is chosen.

#[path = "../shared/absent.rs"]
mod absent;
#[path = "../shared/all.rs"]
mod all;
#[path = "../shared/allowance.rs"]
mod allowance;
#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/composed.rs"]
mod composed;
#[path = "../shared/cpu_only.rs"]
mod cpu_only;
#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/differentiated.rs"]
mod differentiated;
#[path = "../shared/double.rs"]
mod double;
#[path = "../shared/folder.rs"]
mod folder;
#[path = "../shared/judged.rs"]
mod judged;
#[path = "../shared/levels.rs"]
mod levels;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/patches.rs"]
mod patches;
#[path = "../shared/random.rs"]
mod random;
#[path = "../shared/reference.rs"]
mod reference;
#[path = "../shared/rehearsal.rs"]
mod rehearsal;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/tensors.rs"]
mod tensors;
#[path = "../shared/types.rs"]
mod types;
#[path = "../shared/weights.rs"]
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
