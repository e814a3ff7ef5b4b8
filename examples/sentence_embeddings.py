"""The sentence-transformers program that `sentence_embeddings.rs` replaces.

python examples/sentence_embeddings.py MODEL_DIR [FILE]
"""

import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

SENTENCES = """A man is eating food.
Someone is having a meal.
The girl is carrying a baby.
A woman holds an infant in her arms.
A cheetah is running behind its prey.
The stock market fell by three percent on Tuesday."""

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("name the directory of a model, such as all-MiniLM-L6-v2")
    text = Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else SENTENCES
    sentences = text.splitlines()
    model = SentenceTransformer(sys.argv[1], device="cpu", local_files_only=True)
    unit = model.encode(sentences, normalize_embeddings=True)  # [sentences, width]
    for sentence, row in zip(sentences, unit @ unit.T):
        print(*(f"{cosine:6.3f}" for cosine in row), "", sentence)
