//! The memory that loading, serving and training hold, and the memory that they leave allocated.
//!
//! Apart from the other programs, because the allocator here counts for the whole process. Its tests take turns, and
//! those that look at the process's peak start it again for themselves.

#[path = "../shared/small.rs"]
mod small;
#[cfg(target_os = "linux")]
#[path = "../shared/synthetic.rs"]
mod synthetic;
#[cfg(target_os = "linux")]
#[path = "../shared/torch_file.rs"]
mod torch_file;
#[cfg(target_os = "linux")]
#[path = "../shared/torch_from_safetensors.rs"]
mod torch_from_safetensors;

#[cfg(target_os = "linux")]
mod attention;
#[cfg(target_os = "linux")]
mod codes;
mod counted;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod loading;
#[cfg(target_os = "linux")]
mod pickles;
#[cfg(target_os = "linux")]
mod quantized_lora;
#[cfg(target_os = "linux")]
mod reading;
#[cfg(target_os = "linux")]
mod resident;
mod serving;
#[cfg(target_os = "linux")]
mod soak;
mod training;
