//! Training: optimizer, adapters, dropout, recomputation, and trainings that go on where they stopped.

#[path = "../shared/all.rs"]
mod all;
#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/differentiated.rs"]
mod differentiated;
#[path = "../shared/double.rs"]
mod double;
#[path = "../shared/judged.rs"]
mod judged;
#[path = "../shared/kinds.rs"]
mod kinds;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/patches.rs"]
mod patches;
#[path = "../shared/reference.rs"]
mod reference;
#[path = "../shared/rehearsal.rs"]
mod rehearsal;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/small.rs"]
mod small;
#[path = "../shared/trained.rs"]
mod trained;
#[path = "../shared/weights.rs"]
mod weights;

mod each_dropout;
mod failed_backward;
mod half_lora;
mod in_bf16;
mod initialization;
mod initialization_of_two;
mod kept_quantized;
mod lora;
mod lora_start;
mod loss_curve;
mod new_head;
mod on_devices;
mod optimization;
mod peft;
mod recompute;
mod rehearsal_of_all;
mod statistics;
mod tied_training;
mod training_in_parts;
mod training_mode;
mod zero_factors;
