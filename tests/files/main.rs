//! Files: what is written is what is read, and whatever lies on the disk is tensors or an error.

#[path = "../shared/all.rs"]
mod all;
#[path = "../shared/cases.rs"]
mod cases;
#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/contents.rs"]
mod contents;
#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/folder.rs"]
mod folder;
#[path = "../shared/hostile.rs"]
mod hostile;
#[path = "../shared/judged_by_safetensors.rs"]
mod judged_by_safetensors;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/torch_file.rs"]
mod torch_file;
#[path = "../shared/trained.rs"]
mod trained;
#[path = "../shared/weights.rs"]
mod weights;

mod at_once;
mod bad_directories;
mod bad_files;
mod broken_pickles;
mod companions;
mod failed_writes;
mod faults;
mod gguf_headers;
mod gguf_parts;
mod pickles;
mod quantizing;
mod random_damage;
mod round_trip;
mod saving;
mod saving_new;
mod saving_refused;
mod stored;
mod systems;
