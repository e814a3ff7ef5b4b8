"""The tasks for whole models, and the distance between their results and sentence-transformers' or transformers'."""

import random
from pathlib import Path

import torch
from safetensors.torch import save_file

from cases import CODES, COLD_TEXT, NEW_TOKENS, Case
from exports import export

NOVEL = Path(__file__).resolve().parents[2] / "weights/tiny-gpt-text/persuasion.txt"
MOST_WORDS = 200  # about as many as fit a text's 256 tokens


def task(case: Case, checkpoint: Path, work: Path) -> dict:
    """Returns a worker's settings, in addition to the case's. All workers share a quantized file."""
    exports = work / f"{case.model}-exports"
    fields = {"exports": str(exports)}
    if case.op == "generation":
        fields["new_tokens"] = NEW_TOKENS
    if case.precision in CODES:
        fields["file"] = str(export(checkpoint, exports, f"gguf-{case.precision}") / "model.gguf")
    return fields


def write_input(case: Case, config: dict, path: Path) -> dict:
    """Writes `texts`, one per line, with lengths as different as possible; or `input_ids` [batch, seq], random
    prompts."""
    if case.op == "texts":
        texts = [COLD_TEXT] if case.variant == "cold" else passages(case.batch)
        path.write_text("".join(f"{text}\n" for text in texts))
        return {"texts": texts}
    generator = torch.Generator().manual_seed(2)
    tensors = {"input_ids": torch.randint(config["vocab_size"], (case.batch, case.seq), generator=generator)}
    save_file(tensors, path)
    return tensors


def passages(n: int) -> list[str]:
    """Returns texts from one word to `MOST_WORDS`, in mixed order."""
    words = NOVEL.read_text().split()
    draw = random.Random(2)
    lengths = [1 + (MOST_WORDS - 1) * i // max(1, n - 1) for i in range(n)]
    draw.shuffle(lengths)
    starts = [draw.randrange(len(words) - MOST_WORDS) for _ in lengths]
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths)]


def vectors(directory: Path, texts: list[str]) -> torch.Tensor:
    """Returns sentence-transformers' vectors in float64, [texts, d_model]."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(directory), device="cpu").double()
    return model.encode(texts, convert_to_tensor=True, show_progress_bar=False)


class Likeliest:
    """Measures how much less probable a generation's tokens are than the most probable ones, by transformers' logits
    for all tokens before.

    transformers' own choice has distance 0. Rounding may choose the other of two equally probable tokens. Other
    tokens then follow, which are judged in the same way.
    """

    def __init__(self, network, prompts: torch.Tensor):
        self.network, self.prompts, self.known = network, prompts, {}
        self.caches = None  # for each prompt except its last token

    @torch.no_grad()
    def gap(self, tokens: torch.Tensor) -> float:
        """Returns the largest distance to the largest logit, in the logits' standard deviations; infinity if tokens
        are missing."""
        tokens = tokens.long()
        if tokens.shape != (len(self.prompts), NEW_TOKENS) or not 0 <= tokens.min() <= tokens.max() < self.network.config.vocab_size:
            return float("inf")
        key = tuple(tokens.flatten().tolist())
        if key not in self.known:  # most peers choose the same tokens
            if self.caches is None:
                self.caches = [self.network(prompt[None, :-1], logits_to_keep=1).past_key_values for prompt in self.prompts]
            self.known[key] = max(self.gap_of(*one) for one in zip(self.caches, self.prompts, tokens))
        return self.known[key]

    def gap_of(self, cache, prompt: torch.Tensor, new: torch.Tensor) -> float:
        ids = torch.cat([prompt[-1:], new[:-1]])[None]
        logits = self.network(ids, past_key_values=cache).logits[0]
        cache.crop(-len(new))  # for the next tokens
        chosen = logits.gather(1, new[:, None])[:, 0]
        gap = ((logits.max(dim=1).values - chosen) / logits.std(dim=1)).max()
        return float("inf") if gap.isnan() else gap.item()
