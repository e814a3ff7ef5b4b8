"""What is measured: models as data, and the shapes they are run on."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Model:
    """Sizes of a checkpoint with random weights; of one that exists, only its directory."""

    family: str
    d_model: int = 0
    d_ff: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    n_layers: int = 1
    spread: float = 0.02  # standard deviation of the weights
    vocabulary: int = 0  # of a whole model; a stack alone has none
    on_grid: bool = False  # weights that codes of 4 bits in groups of 128 hold without loss, whoever makes them
    directory: Path | None = None

    @property
    def is_whole(self) -> bool:
        return self.vocabulary > 0


@dataclass(frozen=True)
class Case:
    """One line of the table. `rows` of a feed-forward are its batch; its sequences have length 1."""

    op: str  # feed_forward, encoder, prefill, step, train_step; of whole models texts, generation
    model: str
    batch: int
    seq: int
    precision: str  # f32, f16, bf16, int8, int4; of a generation from a file of codes their type, as q4_0
    # An encoder's batch can be "padded"; a training has "dropout", or trains adapters, "lora", with dropout as well. Texts
    # can have a "cold" start. A generation is one case and two lines, "first" and "next".
    variant: str = ""

    @property
    def id(self) -> str:
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.op}/{self.model}/{self.batch}x{self.seq}{variant}/{self.precision}"

    @property
    def shape(self) -> str:
        """What differs within a table: rows of a feed-forward, batch x sequence elsewhere."""
        if self.op == "feed_forward":
            return str(self.batch)
        return f"{self.batch}x{self.seq} {self.variant}".rstrip()

    @property
    def drops(self) -> bool:
        return self.variant in ("dropout", "lora")

    @property
    def is_whole(self) -> bool:
        """Whether it is of a model with its embeddings and head, from text or tokens."""
        return self.op in ("texts", "generation")

    def as_dict(self) -> dict:
        return asdict(self) | {"id": self.id, "shape": self.shape}


# Widths of feed-forwards: one layer of a BERT with these sizes.
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
# What is trained: forward, backward and AdamW. Weights are spread until attention prefers some positions, as trained
# attention does: to drop a few of many equal weights changes so little that the check would not miss it.
TRAINED = {
    "bert-block": Model("bert", 768, 3072, 12, n_layers=1, spread=0.05),
    "bert-6-blocks": Model("bert", 768, 3072, 12, n_layers=6, spread=0.05),
    "gpt2-block": Model("gpt2", 768, 3072, 12, 12, n_layers=1, spread=0.05),
    "llama-block": Model("llama", 768, 2048, 12, 4, n_layers=1, spread=0.05),
    "minilm": Model("bert", 384, 1536, 12, n_layers=6, spread=0.07),
}
TRAININGS = [  # model and variant; a Llama drops nothing
    ("bert-block", ""),
    ("bert-block", "dropout"),
    ("bert-6-blocks", ""),
    ("bert-6-blocks", "dropout"),
    ("gpt2-block", "dropout"),
    ("llama-block", ""),
    ("minilm", "lora"),
]
TRAINED_SHAPE = (8, 128)
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
LORA_LEARNING_RATE = 1e-3  # of so few parameters; with less a loss moves too little to show a fault
# Before any step is timed the losses of the first are compared one by one, without dropout, then the mean loss of others
# with dropout, if there is any.
PLAIN_STEPS, DROPOUT_STEPS = 4, 20
# On the layers that PEFT picks in a BERT.
LORA = {"rank": 8, "alpha": 16.0, "dropout": 0.1, "targets": ["attention.query", "attention.value"]}

# Whole models. GPT-2 small, and the shape of Llamas of half a billion parameters; heads are the embeddings. A GPT-2 with
# smaller weights repeats its first token, whatever the prompt.
GENERATORS = {
    "gpt2-lm": Model("gpt2", 768, 3072, 12, 12, 12, spread=0.05, vocabulary=50257),
    "llama-0.5b": Model("llama", 896, 4864, 14, 2, 24, vocabulary=151936),
}
# In files of codes, whose blocks of 256 divide these widths.
CODED = {
    "llama-0.1b": Model("llama", 768, 2560, 12, 4, 12, vocabulary=49152),
    "llama-0.5b-wide": Model("llama", 1024, 4096, 16, 4, 24, vocabulary=128256),
}
CODES = ["q8_0", "q4_0", "q4_k", "q6_k"]
ON_GRID = {f"{name}-grid": replace(model, on_grid=True) for name, model in CODED.items()}
GENERATION_BATCHES = [1, 8]
NEW_TOKENS = 33  # the first, and 32 behind it
TEXTS, TEXT_LENGTH = 200, 256  # how many, and the most tokens of one: as many as MiniLM takes
COLD_TEXT, COLD_LENGTH = "The first text of a cold start.", 10


def all_cases(precisions: list[str], minilm: Path | None, quick: bool) -> tuple[dict[str, Model], list[Case]]:
    """Models by name, and cases in the order in which they are run: those of a model together."""
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
            # One sequence by itself needs no padding.
            cases += [Case("encoder", model, b, s, precision, "padded") for b, s in shapes if b > 1]
        for model in DECODERS:
            cases += [Case(op, model, 1, CONTEXT, precision) for op in ("prefill", "step")]
    trainings = TRAININGS[:2] if quick else TRAININGS
    for precision in ("f32", "bf16"):
        if precision in precisions:
            cases += [Case("train_step", model, *TRAINED_SHAPE, precision, variant) for model, variant in trainings]
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
    """Those whose id holds any of the patterns; all if there is none."""
    return [case for case in cases if not patterns or any(pattern in case.id for pattern in patterns)]
