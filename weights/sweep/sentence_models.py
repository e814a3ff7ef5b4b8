"""Small random models of the kinds that sentence-transformers makes."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

WORDS = (
    "the tide left three small boats on sand . who repaired clock ? , ! query : caf ##e boat ##s ##ed un yes no calm a b c d e f g h i j k l m "
    "n o p q r s t u v w x y z The Tide Who Boats A B user system query document 0 1 2 3 4"
).split()
WORDS = list(dict.fromkeys(WORDS))
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
N_WORDS = len(SPECIAL) + len(WORDS)
LIMIT = 14
SIZES = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, vocab_size=N_WORDS)
CHAT = (
    "{% if mood is defined %}{{ mood }} {% endif %}{% for m in messages %}[CLS] {{ m.role }} : {{ m.content }} [SEP]{% endfor %}"
    "{% if add_generation_prompt %} b {% endif %}c d"
)
LISTS = CHAT.replace("{{ m.content }}", "{% for part in m.content %}{{ part['text'] }} {% endfor %}")


def tokenizer(lower=False, ends=True, template=None, **names):
    """A tokenizer of words, which puts texts between special tokens, or one behind them."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL + WORDS)}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=lower)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if ends:
        inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    else:
        inner.post_processor = processors.TemplateProcessing(
            single="$A [SEP]", pair="$A $B [SEP]", special_tokens=[("[SEP]", 3)]
        )
    special = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=LIMIT, **special, **names)
    if template:
        fast.chat_template = template
    return fast


def randomise(module: nn.Module, seed: int):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            centre = 1.0 if parameter.ndim == 1 and (parameter == 1).all() else 0.0
            parameter.copy_(centre + torch.randn(parameter.shape, generator=generator) * 0.3)


def saved(folder: Path, model, words, seed=1):
    randomise(model, seed)
    model.eval().save_pretrained(folder)
    words.save_pretrained(folder)


def bert_config(**changes):
    return transformers.BertConfig(max_position_embeddings=20, **SIZES, **changes)


def llama_config(**changes):
    return transformers.Qwen3Config(num_key_value_heads=1, head_dim=8, max_position_embeddings=40, **SIZES, **changes)


def written(folder: Path, make_modules, cls, **arguments):
    """A model of modules that read the checkpoint in `folder`, saved there."""
    modules = make_modules()
    for seed, module in enumerate(modules[1:]):
        randomise(module, seed + 7)
    model = cls(modules=modules, device="cpu", **arguments)
    model.save_pretrained(str(folder), create_model_card=False)


def parts():
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling

    return Dense, Normalize, Transformer, Dropout, LayerNorm, Pooling


def bert(folder: Path):
    from sentence_transformers import SentenceTransformer

    Dense, Normalize, Transformer, Dropout, LayerNorm, Pooling = parts()
    saved(folder, transformers.BertModel(bert_config()), tokenizer())
    modules = lambda: [
        Transformer(str(folder)),
        Pooling(24, "mean"),
        Dense(24, 24, activation_function=nn.GELU()),
        Dropout(0.1),
        LayerNorm(24),
        Normalize(),
    ]
    written(folder, modules, SentenceTransformer, prompts={"query": "who: ", "document": ""}, default_prompt_name="query")


def prompted(folder: Path):
    """All poolings, without the prompt."""
    from sentence_transformers import SentenceTransformer

    Dense, Normalize, Transformer, _, _, Pooling = parts()
    saved(folder, transformers.BertModel(bert_config()), tokenizer(lower=True), 2)
    modules = lambda: [Transformer(str(folder)), Pooling(24, Pooling.POOLING_MODES, include_prompt=False)]
    written(folder, modules, SentenceTransformer, prompts={"query": "who repaired: "}, default_prompt_name="query")


def mpnet(folder: Path):
    from sentence_transformers import SentenceTransformer

    _, Normalize, Transformer, _, _, Pooling = parts()
    model = transformers.MPNetModel(transformers.MPNetConfig(max_position_embeddings=22, pad_token_id=0, **SIZES))
    saved(folder, model, tokenizer(lower=True), 3)
    written(folder, lambda: [Transformer(str(folder)), Pooling(24, "cls"), Normalize()], SentenceTransformer)


def t5(folder: Path):
    from sentence_transformers import SentenceTransformer

    Dense, Normalize, Transformer, _, _, Pooling = parts()
    config = transformers.T5Config(
        vocab_size=N_WORDS, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_decoder_layers=2, num_heads=3, pad_token_id=0, decoder_start_token_id=0
    )
    saved(folder, transformers.T5EncoderModel(config), tokenizer(ends=False), 4)
    modules = lambda: [
        Transformer(str(folder)),
        Pooling(24, "mean"),
        Dense(24, 12, bias=False, activation_function=nn.Identity()),
        Normalize(),
    ]
    written(folder, modules, SentenceTransformer)


def last(folder: Path):
    from sentence_transformers import SentenceTransformer

    _, Normalize, Transformer, _, _, Pooling = parts()
    saved(folder, transformers.Qwen3Model(llama_config()), tokenizer(ends=False, padding_side="left"), 5)
    written(folder, lambda: [Transformer(str(folder)), Pooling(24, "lasttoken"), Normalize()], SentenceTransformer)


def chat(folder: Path, template=CHAT):
    """Texts as the messages of a chat template."""
    from sentence_transformers import SentenceTransformer

    _, _, Transformer, _, _, Pooling = parts()
    saved(folder, transformers.Qwen3Model(llama_config()), tokenizer(ends=False, template=template), 6)
    prompts = {"query": "the tide", "document": ""}
    modules = lambda: [Transformer(str(folder)), Pooling(24, ["mean", "lasttoken"])]
    written(folder, modules, SentenceTransformer, prompts=prompts, default_prompt_name="query")


def lists(folder: Path):
    chat(folder, LISTS)


def ranker(folder: Path):
    from sentence_transformers import CrossEncoder

    _, _, Transformer, _, _, _ = parts()
    saved(folder, transformers.BertForSequenceClassification(bert_config(num_labels=1)), tokenizer(), 8)
    modules = lambda: [Transformer(str(folder), transformer_task="sequence-classification")]
    written(folder, modules, CrossEncoder, prompts={"query": "who: ", "document": ""}, default_prompt_name="query")


def labels(folder: Path):
    from sentence_transformers import CrossEncoder

    _, _, Transformer, _, _, _ = parts()
    config = transformers.RobertaConfig(
        num_labels=3, max_position_embeddings=24, type_vocab_size=1, pad_token_id=0, bos_token_id=2, eos_token_id=3, **SIZES
    )
    saved(folder, transformers.RobertaForSequenceClassification(config), tokenizer(lower=True), 9)
    written(folder, lambda: [Transformer(str(folder), transformer_task="sequence-classification")], CrossEncoder)


def modular(folder: Path):
    from sentence_transformers import CrossEncoder

    Dense, _, Transformer, _, LayerNorm, Pooling = parts()
    config = transformers.ModernBertConfig(
        max_position_embeddings=30, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, local_attention=8, **SIZES
    )
    saved(folder, transformers.ModernBertModel(config), tokenizer(lower=True), 10)
    modules = lambda: [
        Transformer(str(folder)),
        Pooling(24, "cls"),
        Dense(24, 24, bias=False, activation_function=nn.GELU()),
        LayerNorm(24),
        Dense(24, 1, activation_function=nn.Identity(), module_output_name="scores"),
    ]
    written(folder, modules, CrossEncoder)


def yes_no(folder: Path, template=None):
    """The logits of two answers behind a pair."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore

    _, _, Transformer, _, _, _ = parts()
    saved(folder, transformers.Qwen3ForCausalLM(llama_config()), tokenizer(ends=False, template=template), 11)
    yes, no = (len(SPECIAL) + WORDS.index(word) for word in ("yes", "no"))
    modules = lambda: [Transformer(str(folder), transformer_task="text-generation"), LogitScore(yes, no)]
    written(folder, modules, CrossEncoder, prompts={"query": "who: "}, default_prompt_name="query")


def yes_no_chat(folder: Path):
    yes_no(folder, CHAT)


def splade(folder: Path):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    _, _, Transformer, _, _, _ = parts()
    config = transformers.DistilBertConfig(max_position_embeddings=20, dim=24, hidden_dim=40, n_layers=2, n_heads=3, vocab_size=N_WORDS)
    saved(folder, transformers.DistilBertForMaskedLM(config), tokenizer(lower=True), 12)
    modules = lambda: [Transformer(str(folder), transformer_task="fill-mask"), SpladePooling("max")]
    written(folder, modules, SparseEncoder, prompts={"query": "who: ", "document": ""}, default_prompt_name="query")


# The name of each, the class that reads it, and what makes it.
ALL = [
    ("bert", "SentenceTransformer", bert),
    ("prompted", "SentenceTransformer", prompted),
    ("mpnet", "SentenceTransformer", mpnet),
    ("t5", "SentenceTransformer", t5),
    ("last", "SentenceTransformer", last),
    ("chat", "SentenceTransformer", chat),
    ("lists", "SentenceTransformer", lists),
    ("splade", "SparseEncoder", splade),
    ("ranker", "CrossEncoder", ranker),
    ("labels", "CrossEncoder", labels),
    ("modular", "CrossEncoder", modular),
    ("yes_no", "CrossEncoder", yes_no),
    ("yes_no_chat", "CrossEncoder", yes_no_chat),
]
