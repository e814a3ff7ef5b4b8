"""The tokenizer classes of transformers, from its sources: the list `crates/tokenizers/src/tokenizer_class/of_types.txt`.

    python weights/sweep/tokenizer_lists.py            # writes the list
    python weights/sweep/tokenizer_lists.py --check    # exits with 1 where transformers has another one

A class is written in Python where it derives from `PythonBackend` or `SentencePieceBackend`. Then it reads no tokenizer.json and writes none. The sources are read instead of
imported: some classes need packages, without which transformers leaves them out.
"""

import ast
import sys
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

LIST = Path(__file__).resolve().parents[2] / "crates/tokenizers/src/tokenizer_class/of_types.txt"
SOURCES = Path(transformers.__file__).parent
PYTHON = {"PythonBackend", "PreTrainedTokenizer", "SentencePieceBackend"}
LIBRARY = {"TokenizersBackend", "PreTrainedTokenizerFast"}
# Classes that follow tokenizer.json, and need no line: `AS_WRITTEN` in tokenizer_class.rs.
AS_WRITTEN = {"TokenizersBackend", "MistralCommonBackend", "PreTrainedTokenizer", "PythonBackend", "ConvBertTokenizer"}
HEAD = """\
# The classes of tokenizers of transformers {version}, from its sources, by `weights/sweep/tokenizer_lists.py`: those that it registers for each model type
# (`TOKENIZER_MAPPING_NAMES` of its auto/tokenization_auto.py).
# `in Python` has the classes that are written in Python, read no tokenizer.json and write none.
# `without a type` has the other classes, for which no model type is registered.
# `mistaken` has the model types whose files on the Hub name another class that transformers passes over.
"""


def first(value: ast.expr) -> str | None:
    """The class where all packages are installed."""
    while isinstance(value, ast.IfExp):
        value = value.body
    return value.value if isinstance(value, ast.Constant) else None


def of_auto() -> tuple[dict[str, str], set[str]]:
    """The class of each model type, and the types whose files name a wrong class."""
    types, mistaken = {}, set()
    for node in ast.parse((SOURCES / "models/auto/tokenization_auto.py").read_text()).body:
        name = node.targets[0].id if isinstance(node, ast.Assign) else node.target.id if isinstance(node, ast.AnnAssign) else None
        if name == "TOKENIZER_MAPPING_NAMES":
            pairs = node.value.args[0].elts
            types = {pair.elts[0].value: first(pair.elts[1]) for pair in pairs}
        if name == "MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS":
            mistaken = {one.value for one in node.value.elts}
    assert types and mistaken, "tokenization_auto.py has other lists"
    types = {kind: name.removesuffix("Fast") for kind, name in types.items() if name}
    return {**dict.fromkeys(mistaken, "TokenizersBackend"), **types}, mistaken


def of_sources() -> dict[str, set[str]]:
    """The bases of every class in a file that has tokenizers."""
    bases = {}
    for path in [*SOURCES.glob("models/*/tokenization_*.py"), *SOURCES.glob("tokenization_*.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                bases |= {target.id: {node.value.id} for target in node.targets if isinstance(target, ast.Name)}
    return bases


def derive(name: str, bases: dict[str, set[str]], roots: set[str]) -> bool:
    return name in roots or any(derive(base, bases, roots) for base in bases.get(name, ()))


def listed() -> str:
    types, mistaken = of_auto()
    bases = of_sources()
    # Names that transformers has for classes that it has joined to others.
    names = {name.removesuffix("Fast") for name in {*bases, *dir(transformers)} if name.endswith(("Tokenizer", "TokenizerFast", "TokenizerLegacy"))}
    python = {name for name in names if derive(name, bases, PYTHON)} - PYTHON
    library = {name for name in names if derive(name, bases, LIBRARY) or derive(name + "Fast", bases, LIBRARY)} - python
    registered = {}
    for kind, name in types.items():
        if kind in CONFIG_MAPPING_NAMES:
            registered.setdefault(name, []).append(kind)
    lines = [f"{name}: {' '.join(sorted(kinds))}" for name, kinds in sorted(registered.items())]
    lines.append(f"mistaken: {' '.join(sorted(mistaken))}")
    lines.append(f"in Python: {' '.join(sorted(python))}")
    lines.append(f"without a type: {' '.join(sorted(library - set(registered) - AS_WRITTEN))}")
    return HEAD.format(version=transformers.__version__) + "\n".join(lines) + "\n"


def main():
    new = listed()
    if "--check" not in sys.argv:
        LIST.write_text(new)
        return
    (old, new) = (set(text.splitlines()) for text in (LIST.read_text(), new))
    for mark, lines in (("-", old - new), ("+", new - old)):
        for line in sorted(lines):
            print(mark, line)
    sys.exit(1 if old != new else 0)


if __name__ == "__main__":
    main()
