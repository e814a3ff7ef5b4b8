//! Module names of transformers' classes, where they differ from the tensor names on disk.
//!
//! transformers 5 renames and splits tensors while it loads them (`conversion_mapping.py`). PEFT uses the resulting module
//! names: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/conversion_mapping.py>.

use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::scheme::Family;

/// Differences for some families.
struct Modules {
    families: &'static [&'static str],
    /// The prefix of names in a block, with `{i}` for the block's index; if empty, the prefix on disk.
    block: &'static str,
    /// The end of a name on disk without `.weight`, the slice's role if the tensor is split, and the module's name.
    names: &'static [(&'static str, &'static str, &'static str)],
}

const DIFFERENT: &[Modules] = &[
    Modules {
        families: &["mixtral", "minimax_m2"],
        block: "",
        names: &[("block_sparse_moe.gate", "", "mlp.gate")],
    },
    Modules {
        families: &["phimoe"],
        block: "",
        names: &[("block_sparse_moe.gate", "", "mlp.router")],
    },
    Modules {
        families: &["granitemoe", "granitemoeshared"],
        block: "",
        names: &[(
            "block_sparse_moe.router.layer",
            "",
            "block_sparse_moe.router",
        )],
    },
    Modules {
        families: &["vit", "vit_msn", "ijepa", "vit_mae"],
        block: "layers.{i}.",
        names: &[
            ("attention.attention.query", "", "attention.q_proj"),
            ("attention.attention.key", "", "attention.k_proj"),
            ("attention.attention.value", "", "attention.v_proj"),
            ("attention.output.dense", "", "attention.o_proj"),
            ("intermediate.dense", "", "mlp.fc1"),
            ("output.dense", "", "mlp.fc2"),
        ],
    },
    Modules {
        families: &["dinov2"],
        block: "",
        names: &[
            ("attention.attention.query", "", "attention.q_proj"),
            ("attention.attention.key", "", "attention.k_proj"),
            ("attention.attention.value", "", "attention.v_proj"),
            ("attention.output.dense", "", "attention.o_proj"),
            ("mlp.weights_in", "feed_forward.gate", "mlp.gate_proj"),
            ("mlp.weights_in", "feed_forward.up", "mlp.up_proj"),
            ("mlp.weights_out", "", "mlp.down_proj"),
        ],
    },
    Modules {
        families: &["dinov3_vit"],
        block: "model.layer.{i}.",
        names: &[],
    },
    Modules {
        families: &["gte"],
        block: "layers.{i}.",
        names: &[
            ("attention.qkv_proj", "attention.query", "self_attn.q_proj"),
            ("attention.qkv_proj", "attention.key", "self_attn.k_proj"),
            ("attention.qkv_proj", "attention.value", "self_attn.v_proj"),
            ("attention.o_proj", "", "self_attn.o_proj"),
            ("attn_ln", "", "post_attention_layernorm"),
            ("mlp.up_gate_proj", "feed_forward.up", "mlp.up_proj"),
            ("mlp.up_gate_proj", "feed_forward.gate", "mlp.gate_proj"),
            ("mlp_ln", "", "post_mlp_layernorm"),
            ("lm_head.norm", "", "lm_head.layer_norm"),
        ],
    },
    Modules {
        families: &["jina_embeddings_v3"],
        block: "layers.{i}.",
        names: &[
            ("mixer.Wqkv", "attention.query", "self_attn.q_proj"),
            ("mixer.Wqkv", "attention.key", "self_attn.k_proj"),
            ("mixer.Wqkv", "attention.value", "self_attn.v_proj"),
            ("mixer.out_proj", "", "self_attn.o_proj"),
            ("norm1", "", "post_attention_layernorm"),
            ("norm2", "", "post_mlp_layernorm"),
            ("emb_ln", "", "embeddings.LayerNorm"),
        ],
    },
    Modules {
        families: &["nomic_bert"],
        block: "layers.{i}.",
        names: &[
            ("attn.Wqkv", "attention.query", "self_attn.q_proj"),
            ("attn.Wqkv", "attention.key", "self_attn.k_proj"),
            ("attn.Wqkv", "attention.value", "self_attn.v_proj"),
            ("attn.out_proj", "", "self_attn.o_proj"),
            ("norm1", "", "post_attention_layernorm"),
            ("mlp.fc11", "", "mlp.up_proj"),
            ("mlp.fc12", "", "mlp.gate_proj"),
            ("mlp.fc2", "", "mlp.down_proj"),
            ("norm2", "", "post_mlp_layernorm"),
            ("emb_ln", "", "embeddings.LayerNorm"),
        ],
    },
    Modules {
        families: &["gpt_neox"],
        block: "",
        names: &[("embed_out", "", "lm_head")],
    },
];

/// A parameter's name in the class, without the base model's prefix, and whether the class has it as a separate module
/// although the files fuse it with others.
pub(super) struct InClass {
    pub name: String,
    pub is_split: bool,
}

impl InClass {
    /// Returns the name in the class for a parameter that has this prefix on disk.
    pub fn new(family: &Family, prefix: &str, source: &StoredParameter) -> Self {
        let local = source.name.strip_prefix(prefix).unwrap_or(&source.name);
        let as_on_disk = || Self {
            name: local.to_string(),
            is_split: false,
        };
        let mut different = DIFFERENT.iter();
        let Some(known) = different.find(|of| of.families.contains(&family.name.as_str())) else {
            return as_on_disk();
        };
        let index = (source.role.strip_prefix("blocks."))
            .and_then(|role| role.split('.').next()?.parse::<usize>().ok());
        let own = index.map(|index| family.block_prefix(index));
        let inside = own.as_deref().and_then(|own| local.strip_prefix(own));
        let (before, inside) = match (inside, index, known.block) {
            (Some(inside), Some(_), "") => (own.unwrap_or_default(), inside),
            (Some(inside), Some(index), block) => {
                (block.replace("{i}", &index.to_string()), inside)
            }
            _ => (String::new(), local),
        };
        let Some((stem, parameter)) = inside.rsplit_once('.') else {
            return as_on_disk();
        };
        let has_role = |role: &str| role.is_empty() || source.role.contains(&format!(".{role}."));
        let mut names = known.names.iter();
        let renamed = names.find(|(on_disk, role, _)| *on_disk == stem && has_role(role));
        let (stem, is_split) = match renamed {
            Some((_, role, name)) => (*name, !role.is_empty()),
            None => (stem, false),
        };
        Self {
            name: format!("{before}{stem}.{parameter}"),
            is_split,
        }
    }
}
