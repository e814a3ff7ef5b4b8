"""What is measured: models as data, and the shapes they are run on."""

from dataclasses import asdict, dataclass
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
    directory: Path | None = None


@dataclass(frozen=True)
class Case:
    """One line of the table. `rows` of a feed-forward are its batch; its sequences have length 1."""

    op: str  # feed_forward, encoder, prefill, step, train_step
    model: str
    batch: int
    seq: int
    precision: str  # f32, bf16, int8
    padded: bool = False

    @property
    def id(self) -> str:
        padded = "-padded" if self.padded else ""
        return f"{self.op}/{self.model}/{self.batch}x{self.seq}{padded}/{self.precision}"

    @property
    def shape(self) -> str:
        """What differs within a table: rows of a feed-forward, batch x sequence elsewhere."""
        if self.op == "feed_forward":
            return str(self.batch)
        return f"{self.batch}x{self.seq}" + (" padded" if self.padded else "")

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
# What is trained: forward, backward and AdamW, without dropout.
TRAINED = {
    "bert-block": Model("bert", 768, 3072, 12, n_layers=1),
    "bert-6-blocks": Model("bert", 768, 3072, 12, n_layers=6),
}
TRAINED_SHAPE = (8, 128)
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
COMPARED_STEPS = 4  # losses that are compared before any step is timed


def all_cases(precisions: list[str], minilm: Path | None, quick: bool) -> tuple[dict[str, Model], list[Case]]:
    """Models by name, and cases in the order in which they are run: those of a model together."""
    models = WIDTHS | ENCODERS | DECODERS | TRAINED
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
    for precision in precisions:
        cases += [Case("feed_forward", width, n, 1, precision) for width in widths for n in rows]
        for model in encoders:
            for padded in (False, True):
                # One sequence by itself needs no padding.
                cases += [Case("encoder", model, b, s, precision, padded) for b, s in shapes if not padded or b > 1]
        for model in DECODERS:
            cases += [Case(op, model, 1, CONTEXT, precision) for op in ("prefill", "step")]
    if "f32" in precisions:
        trained = list(TRAINED)[:1] if quick else list(TRAINED)
        cases += [Case("train_step", model, *TRAINED_SHAPE, "f32") for model in trained]
    used = {case.model for case in cases}
    return {name: model for name, model in models.items() if name in used}, cases


def selected(cases: list[Case], patterns: list[str]) -> list[Case]:
    """Those whose id holds any of the patterns; all if there is none."""
    return [case for case in cases if not patterns or any(pattern in case.id for pattern in patterns)]
