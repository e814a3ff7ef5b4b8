//! Advice that leads to another program, and how it was carried out.

/// How advice was carried out.
pub enum Carried {
    /// By the test with this name: it does what the advice says, or reads what the advice makes.
    ByTest(&'static str),
    /// By hand, since tests run no Python and need no network: with these versions, and with this result.
    ByHand(&'static str),
    /// Nobody carried it out yet, for this reason.
    NotYet(&'static str),
    /// The text names another program, and asks for nothing to be done there.
    NamesOnly,
}
use Carried::{ByHand, ByTest, NamesOnly, NotYet};

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
        NotYet("it needs a remote repository; a unit test recognizes a pointer"),
    ),
    (
        "a Git LFS pointer, not the tokenizer",
        NotYet("as for weights"),
    ),
    (
        "join them with `llama-gguf-split --merge`",
        NotYet("the program was not at hand; tests/files/gguf_parts.rs reads parts"),
    ),
    (
        "llama.cpp's `llama-quantize` from its F16 or BF16 file",
        NotYet("the program was not at hand; weights/gguf-types has values of its quantizer"),
    ),
    (
        "convert_llama_weights_to_hf.py",
        NotYet("no publisher's own files were at hand"),
    ),
    (
        "save it again, as a numeric array, with `numpy.save`",
        ByTest("a_numpy_file_is_not_taken_for_a_pickle"),
    ),
    (
        "with `torch.save` without `pickle_protocol`",
        NotYet("torch 2.15 loads such a file only with `weights_only=False`"),
    ),
    (
        "which `torch.save` does not write for tensors",
        NotYet("as for files with `pickle_protocol`"),
    ),
    (
        "only stored entries are read; save it again",
        NotYet("tests/files/pickles.rs reads what both write"),
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
        "hf download {0} --local-dir DIR",
        NotYet("it needs the network"),
    ),
    (
        "or `save_pretrained` in transformers",
        ByHand("transformers 5.23 wrote every committed checkpoint in weights/families so"),
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
        NotYet("the package was not at hand; the tests read files in both formats"),
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
        NotYet("no adapter for single experts of transformers 4 was at hand"),
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
        NotYet("no folder of PyLate was at hand"),
    ),
    (
        "which is written in Python, writes none and is not read here",
        NamesOnly,
    ),
    (
        "t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])",
        NotYet("its result depends on the class: one in Python writes no tokenizer.json"),
    ),
    (
        "the Python package `gguf` adds the keys tokenizer.ggml.*",
        NotYet("the note names the package alone"),
    ),
];
