//! Packed layers are the layers that they were made from, and caches give what whole sequences give.

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
#[path = "../shared/double.rs"]
mod double;
#[path = "../shared/judged.rs"]
mod judged;
#[path = "../shared/kinds.rs"]
mod kinds;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/patches.rs"]
mod patches;
#[path = "../shared/refused.rs"]
mod refused;
#[path = "../shared/rehearsal.rs"]
mod rehearsal;
#[path = "../shared/same.rs"]
mod same;
#[path = "../shared/small.rs"]
mod small;
#[path = "../shared/small_on_device.rs"]
mod small_on_device;
#[path = "../shared/types.rs"]
mod types;
#[path = "../shared/weights.rs"]
mod weights;
#[path = "../shared/zamba.rs"]
mod zamba;

mod axes;
mod decoding;
mod drawn;
mod latents;
mod layers_cache;
mod memory;
mod packed;
mod packed_cache;
mod packed_groups;
mod random_blocks;
mod recurrent;
mod rehearsal_of_all;
mod same_bits;
mod serving;
mod stored_caches;
mod without_a_device;
