"""The measured models and shapes."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Model:
    """The sizes for a checkpoint with random weights, or the directory of an existing one."""

    family: str
    d_model: int = 0
    d_ff: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    n_layers: int = 1
    spread: float = 0.02  # the weights' standard deviation
    vocabulary: int = 0  # for a whole model; 0 for a stack
    on_grid: bool = False  # weights that 4-bit values in groups of 128 represent exactly, with any quantizer
    directory: Path | None = None

    @property
    def is_whole(self) -> bool:
        return self.vocabulary > 0


@dataclass(frozen=True)
class Case:
    """One line in the table. A feed-forward's `rows` are its batch; its sequences have length 1."""

    op: str  # feed_forward, encoder, prefill, step, train_step; for whole models texts, generation
    model: str
    batch: int
    seq: int
    precision: str  # f32, f16, bf16, int8, int4; for generation from a quantized file the type, such as q4_0
    # "padded" for an encoder's batch. "dropout" for training with dropout, "lora" for training adapters, also with
    # dropout. "cold" for texts with a cold start. A generation is one case and two lines, "first" and "next".
    variant: str = ""

    @property
    def id(self) -> str:
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.op}/{self.model}/{self.batch}x{self.seq}{variant}/{self.precision}"

    @property
    def shape(self) -> str:
        """The case's shape in its table: a feed-forward's rows, otherwise batch x sequence."""
        if self.op == "feed_forward":
            return str(self.batch)
        return f"{self.batch}x{self.seq} {self.variant}".rstrip()

    @property
    def drops(self) -> bool:
        return self.variant in ("dropout", "lora")

    @property
    def is_whole(self) -> bool:
        """True for a model with embeddings and head, which takes text or tokens."""
        return self.op in ("texts", "generation")

    def as_dict(self) -> dict:
        return asdict(self) | {"id": self.id, "shape": self.shape}


# Feed-forward widths: one layer in a BERT with these sizes.
WIDTHS = {
    "384x1536": Model("bert", 384, 1536, 6),
    "768x3072": Model("bert", 768, 3072, 12),
    "1024x4096": Model("bert", 1024, 4096, 16),
    "500x2001": Model("bert", 500, 2001, 4),
}
ROWS = [1, 4, 8, 13, 32, 100, 128, 512, 1000, 2048]
ENCODERS = {"bert-base": Model("bert", 768, 3072, 12, n_layers=12)}
ENCODER_SHAPES = [(1, 16), (1, 128), (4, 32), (8, 128), (32, 128)]
DECODERS = {
    "gpt2-small": Model("gpt2", 768, 3072, 12, 12, 12),
    "llama-gqa": Model("llama", 1024, 2816, 16, 4, 12),
}
CONTEXT = 512
# Training cases: forward, backward and AdamW. The weights are scaled up until attention prefers some positions, like
# trained attention: with nearly equal weights, missing dropout would change so little that the check would not
# notice.
TRAINED = {
    "bert-block": Model("bert", 768, 3072, 12, n_layers=1, spread=0.05),
    "bert-6-blocks": Model("bert", 768, 3072, 12, n_layers=6, spread=0.05),
    "gpt2-block": Model("gpt2", 768, 3072, 12, 12, n_layers=1, spread=0.05),
    "llama-block": Model("llama", 768, 2048, 12, 4, n_layers=1, spread=0.05),
    "minilm": Model("bert", 384, 1536, 12, n_layers=6, spread=0.07),
}
TRAININGS = [  # model and variant; Llama has no dropout
    ("bert-block", ""),
    ("bert-block", "dropout"),
    ("bert-6-blocks", ""),
    ("bert-6-blocks", "dropout"),
    ("gpt2-block", "dropout"),
    ("llama-block", ""),
    ("minilm", "lora"),
]
TRAINED_SHAPE = (8, 128)
LONG_TRAININGS = [("bert-block", (4, 512)), ("llama-block", (1, 4096))]
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
LORA_LEARNING_RATE = 1e-3  # for few parameters; with a lower rate the loss changes too little to show a mistake
# Before the timed steps, the first losses are compared one by one, without dropout, then the mean loss over others
# with dropout, if any.
PLAIN_STEPS, DROPOUT_STEPS = 4, 20
# For the layers that PEFT chooses in BERT.
LORA = {"rank": 8, "alpha": 16.0, "dropout": 0.1, "targets": ["attention.query", "attention.value"]}

# Whole models. GPT-2 small, and Llamas with half a billion parameters; embeddings and head are tied. GPT-2 with
# smaller weights repeats its first token for any prompt.
GENERATORS = {
    "gpt2-lm": Model("gpt2", 768, 3072, 12, 12, 12, spread=0.05, vocabulary=50257),
    "llama-0.5b": Model("llama", 896, 4864, 14, 2, 24, vocabulary=151936),
}
# For quantized files, whose blocks of 256 divide these widths.
CODED = {
    "llama-0.1b": Model("llama", 768, 2560, 12, 4, 12, vocabulary=49152),
    "llama-0.5b-wide": Model("llama", 1024, 4096, 16, 4, 24, vocabulary=128256),
}
CODES = ["q8_0", "q4_0", "q4_k", "q6_k"]
ON_GRID = {f"{name}-grid": replace(model, on_grid=True) for name, model in CODED.items()}
GENERATION_BATCHES = [1, 8]
NEW_TOKENS = 33  # the first, and 32 after it
TEXTS, TEXT_LENGTH = 200, 256  # the number of texts, and the most tokens per text: MiniLM's maximum
COLD_TEXT, COLD_LENGTH = "The first text of a cold start.", 10


def all_cases(precisions: list[str], minilm: Path | None, quick: bool) -> tuple[dict[str, Model], list[Case]]:
    """Returns the models by name, and the cases in execution order, grouped by model."""
    models = WIDTHS | ENCODERS | DECODERS | TRAINED | GENERATORS | CODED | ON_GRID
    encoders = list(ENCODERS)
    if minilm is not None:
        models = models | {"minilm": Model("bert", directory=minilm)}
        encoders.insert(0, "minilm")
    shapes = ENCODER_SHAPES
    widths, rows = list(WIDTHS), ROWS
    if quick:
        widths, rows, shapes = ["384x1536", "500x2001"], [1, 13, 128], [(1, 16), (4, 32)]
        encoders = encoders[:1]
    cases = []
    of_generations = dict.fromkeys(CODES, CODED) | {"int4": ON_GRID}
    for precision in precisions:
        if precision in of_generations:
            continue
        cases += [Case("feed_forward", width, n, 1, precision) for width in widths for n in rows]
        for model in encoders:
            cases += [Case("encoder", model, b, s, precision) for b, s in shapes]
            # A single sequence needs no padding.
            cases += [Case("encoder", model, b, s, precision, "padded") for b, s in shapes if b > 1]
        for model in DECODERS:
            cases += [Case(op, model, 1, CONTEXT, precision) for op in ("prefill", "step")]
    trainings = TRAININGS[:2] if quick else TRAININGS
    for precision in ("f32", "bf16"):
        if precision in precisions:
            cases += [Case("train_step", model, *TRAINED_SHAPE, precision, variant) for model, variant in trainings]
            cases += [Case("train_step", model, *shape, precision) for model, shape in LONG_TRAININGS if not quick]
    if minilm is not None and "f32" in precisions:
        cases += [Case("texts", "minilm", 1, COLD_LENGTH, "f32", "cold"), Case("texts", "minilm", TEXTS, TEXT_LENGTH, "f32")]
    generators, batches = (["gpt2-lm"], [1]) if quick else (list(GENERATORS), GENERATION_BATCHES)
    for precision in ("f32", "bf16"):
        if precision in precisions:
            cases += [Case("generation", model, b, CONTEXT, precision) for model in generators for b in batches]
    for codes, coded in of_generations.items():
        if codes in precisions:
            cases += [Case("generation", model, 1, CONTEXT, codes) for model in list(coded)[: 1 if quick else None]]
    used = {case.model for case in cases}
    return {name: model for name, model in models.items() if name in used}, cases


def selected(cases: list[Case], patterns: list[str]) -> list[Case]:
    """Returns the cases whose id contains any of the patterns, or all without patterns."""
    return [case for case in cases if not patterns or any(pattern in case.id for pattern in patterns)]
