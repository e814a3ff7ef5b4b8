//! Advice that leads to another program, and how it was carried out.

/// How advice was carried out.
pub enum Carried {
    /// By the test with this name: it does what the advice says, or reads what the advice makes.
    ByTest(&'static str),
    /// By hand, since tests run no Python and need no network: with these versions, and with this result.
    ByHand(&'static str),
    /// The text names another program, and asks for nothing to be done there.
    NamesOnly,
}
use Carried::{ByHand, ByTest, NamesOnly};

/// A test with files that PEFT wrote.
const OF_PEFT: Carried = ByTest("adapters_compute_what_peft_computes");
const MERGED: Carried = ByHand(
    "PEFT 0.21 and transformers 5.23, IA3 on Llama: the merged folder gives PEFT's logits within 4e-7",
);

/// Words of the advice, and how it was carried out.
pub const ADVICE: &[(&str, Carried)] = &[
    // Weights in other formats.
    ("a Python pickle, which can run code", NamesOnly),
    ("neither the `data.pkl` of `torch.save`", NamesOnly),
    (
        "torch.save(torch.load(file, weights_only=True), file)",
        ByHand("torch 2.15, a file in the format before 1.6: inspect reads the new file"),
    ),
    (
        "load it in Python with the library that wrote it",
        ByHand("safetensors 0.8, a pickled dict of arrays: inspect reads the saved tensors"),
    ),
    (
        "from_tf=True",
        ByHand(
            "transformers 4.46.3 with TensorFlow 2.18.1, tf-keras 2.18 and torch 2.15: BERT's logits from the new folder are \
             TensorFlow's within 2e-7",
        ),
    ),
    (
        "from_flax=True",
        ByHand(
            "transformers 4.46.3 with flax 0.10.2, jax 0.4.35 and torch 2.15: BERT's logits from the new folder are Flax's \
             within 4e-7; transformers 4.57.6 fails at this",
        ),
    ),
    (
        "fetch them with `git lfs pull`",
        ByHand(
            "Git LFS 3.3.0, a clone without the files: after `git lfs pull` inspect reads the weights",
        ),
    ),
    (
        "a Git LFS pointer, not the tokenizer",
        ByHand("Git LFS 3.3.0, as for weights: generate gives the text of the original folder"),
    ),
    (
        "llama.cpp's `llama-quantize` from its F16 or BF16 file",
        ByHand(
            "llama.cpp 0.5.0, Llama in Q2_0, which is refused: from F16, run gives the logits of transformers 5.23 with the \
             weights as gguf 0.19 dequantizes them within 6e-7, for Q2_K, Q4_K_M, Q8_0 and BF16",
        ),
    ),
    (
        "transformers.models.llama.convert_llama_weights_to_hf",
        ByHand(
            "transformers 4.46.3 on random weights in the layout of Meta, of one rank and of two, and of Mistral with \
             tokenizer.model.v3: the logits of the model within 2e-6; the packages of transformers 4.57.6 and 5.23 have no such \
             scripts",
        ),
    ),
    (
        "save it again, as a numeric array, with `numpy.save`",
        ByTest("a_numpy_file_is_not_taken_for_a_pickle"),
    ),
    (
        "torch.save(torch.load(file, weights_only=False), file)",
        ByHand(
            "torch 2.15, Llama with protocols 3, 4 and 5: run gives transformers' logits within 3e-8; with `weights_only=True` torch \
             loads none of protocol 4 or 5",
        ),
    ),
    (
        "which `torch.save` does not write for tensors",
        ByHand(
            "torch 2.15, a state_dict of Llama with protocols 0 and 1: inspect reads the new file",
        ),
    ),
    (
        "only stored entries are read; save it again",
        ByHand(
            "torch 2.15 and numpy 2.4: torch.load and numpy.load read compressed files, and run gives the same logits from the new \
             file within 3e-8",
        ),
    ),
    (
        "save the tensors alone, with `torch.save(model.state_dict(), file)`",
        ByHand(
            "torch 2.15 and transformers 5.23, a pickled BertModel: inspect reads its state_dict",
        ),
    ),
    (
        "torch.save(torch.load(file)[",
        ByHand("torch 2.15, a dict with `model` and `epoch`: inspect reads the inner dict"),
    ),
    (
        "save `model.module.state_dict()`",
        ByHand("torch 2.15, a BertModel in DataParallel: inspect reads the inner state_dict"),
    ),
    (
        "save `model._orig_mod.state_dict()`",
        ByHand("torch 2.15, a compiled BertModel: inspect reads the inner state_dict"),
    ),
    // Inputs.
    (
        "that transformers' model returns with `output_hidden_states=True`",
        ByHand(
            "transformers 5.23, wav2vec 2.0 with both places of norms: run gives its last hidden state within 3e-7",
        ),
    ),
    // The Hub.
    (
        "hf download {owner}{0} --local-dir DIR",
        ByHand(
            "huggingface_hub 2.4.0 and a local server with the Hub's answers: the folder has the same files, and generate reads it",
        ),
    ),
    (
        "or `save_pretrained` in transformers",
        ByHand(
            "transformers 5.23 and 5.24 wrote every committed checkpoint in weights/families so",
        ),
    ),
    // Quantized weights.
    (
        "python examples/dequantize.py FOLDER NEW",
        ByHand(
            "hqq 0.2.8 with transformers 4.57.6, Llama in 4 bits: the same logits; torchao 0.18 with transformers 5.23, Llama \
             in int8: within 4e-7; transformers 5.23 reads no hqq, and the script says so",
        ),
    ),
    (
        "have auto-round export one of these",
        ByHand(
            "auto-round 0.16.1, Llama in MXFP4, which is refused: exported as auto_round:auto_gptq, run gives the logits of \
             auto-round's dequantized weights within 4e-6, and as auto_round:auto_awq those of weights dequantized as AWQ \
             defines it within 5e-6",
        ),
    ),
    // Adapters.
    (
        "merge it in Python with `merge_and_unload()` if PEFT can",
        MERGED,
    ),
    (
        "merge the adapter in Python with `merge_and_unload()`",
        MERGED,
    ),
    (
        "or merge the two in Python with `merge_and_unload()`",
        MERGED,
    ),
    (
        "merge it in Python, with transformers 4, by `merge_and_unload()`",
        ByHand(
            "PEFT 0.18.0 and transformers 4.57.6, LoRA on single experts of Qwen2-MoE, Mixtral and PhiMoE: the merged folder gives \
             PEFT's logits within 1e-6",
        ),
    ),
    ("path_initial_model_for_weight_conversion", OF_PEFT),
    (
        "give the folder that PEFT's `save_pretrained` wrote",
        OF_PEFT,
    ),
    ("write the adapter with PEFT's `save_pretrained`", OF_PEFT),
    (
        "list the adapter's modules, as PEFT's `save_pretrained` does",
        OF_PEFT,
    ),
    ("give the output of PEFT's `save_pretrained`", OF_PEFT),
    // Texts and tokenizers.
    (
        "such as with `iconv -f",
        ByHand("iconv 2.36, a line in ISO-8859-1: embed reads the converted file"),
    ),
    (
        "from sentence_transformers import MultiVectorEncoder",
        ByHand(
            "PyLate 1.6.0 and sentence-transformers 6.2.0, BERT in the files of PyLate and of Stanford: embed gives PyLate's vectors \
             of queries and documents within 2e-7",
        ),
    ),
    (
        "which is written in Python, writes none and is not read here",
        NamesOnly,
    ),
    (
        "t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])",
        ByHand(
            "transformers 5.23 with sentencepiece 0.2.3 and protobuf 7.36, FNetTokenizer, LasrTokenizer and EsmcTokenizer, and a \
             class that transformers does not have beside tokenizer.model: classify gives transformers' logits within 4e-7",
        ),
    ),
    (
        "its convert_hf_to_gguf.py and `llama-quantize` make a file with one",
        ByHand(
            "llama.cpp 0.5.0, Llama in Q8_0: llama.cpp reads texts with the new file, and token ids alone with ours",
        ),
    ),
];
