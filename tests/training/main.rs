//! Training: optimizer, adapters, dropout, recomputation, and trainings that go on where they stopped.

#[path = "../shared/absent.rs"]
mod absent;
#[path = "../shared/all.rs"]
mod all;
#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/cpu_only.rs"]
mod cpu_only;
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
#[path = "../shared/same.rs"]
mod same;
#[path = "../shared/small.rs"]
mod small;
#[path = "../shared/small_on_device.rs"]
mod small_on_device;
#[path = "../shared/trained.rs"]
mod trained;
#[path = "../shared/weights.rs"]
mod weights;
#[path = "../shared/zamba.rs"]
mod zamba;

mod each_dropout;
mod embedding_losses;
mod failed_backward;
mod half_lora;
mod in_bf16;
mod initialization;
mod initialization_of_two;
mod kept_quantized;
mod lora;
mod lora_start;
mod loss_curve;
mod merged_variables;
mod modified_in_place;
mod new_head;
mod on_devices;
mod optimization;
mod peft;
mod peft_base;
mod plain_files;
mod recompute;
mod rehearsal_of_all;
mod shared_transformers;
mod statistics;
mod tied_training;
mod training_in_parts;
mod training_mode;
mod without_a_device;
mod zero_factors;
