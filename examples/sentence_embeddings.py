"""The sentence-transformers program that `sentence_embeddings.rs` replaces.

    python examples/sentence_embeddings.py MODEL_DIR [--out FILE.json] [--text FILE]

Embeds sentences as one padded batch (mean over the tokens, normalised to length 1) and prints how similar
each is to the first. `--out` writes `{"sentences": [..], "embeddings": [[..], ..]}` to compare numbers with.
"""

import argparse
import json
from pathlib import Path

from sentence_transformers import SentenceTransformer

SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun.",
    "Interest rates rose again in March.",
    "Central banks tightened monetary policy for the third consecutive quarter, citing persistent inflation in services.",
    "Stop!",
    "How do I load a checkpoint without knowing which model family it belongs to?",
    "Rain is expected from the west towards evening, heavy at times in the hills, clearing slowly after midnight.",
    "She repaired the old clock with a paper clip.",
]


def main() -> None:
    """Embeds, compares, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory of the checkpoint, such as all-MiniLM-L6-v2")
    parser.add_argument("--text", type=Path, help="one sentence per line")
    parser.add_argument("--out", type=Path, help="JSON file for the embeddings")
    args = parser.parse_args()

    sentences = args.text.read_text().splitlines() if args.text else SENTENCES
    model = SentenceTransformer(args.model, device="cpu", local_files_only=True)
    embeddings = model.encode(sentences, batch_size=len(sentences), normalize_embeddings=True)  # [n, d_model]

    for sentence, similarity in zip(sentences, embeddings @ embeddings[0]):
        print(f"{similarity:6.3f}  {sentence}")
    if args.out:
        args.out.write_text(json.dumps({"sentences": sentences, "embeddings": embeddings.tolist()}))


if __name__ == "__main__":
    main()
