"""Chat templates rendered by the program and by transformers: the counts of renders that differ.

    python weights/sweep/templates.py PROGRAM FOLDER [--model DIR] [--show N]

FOLDER has templates, `*.jinja`, such as those that are published with models. Each is rendered with every conversation below by
`candle-blocks generate --print-prompt`, and by the tokenizer's `apply_chat_template`. A render that only one of them refuses
counts, and so does any byte. Exits with 1 if a render fails or differs here that works there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import transformers

ROOT = Path(__file__).resolve().parents[1]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def message(role: str, content, **further) -> dict:
    """A message."""
    return {"role": role, "content": content, **further}


ARGUMENTS = {"city": "Zürich", "days": 3, "factor": 1.5, "ok": True, "nothing": None, "list": [1, "a"], "quoted": "it's \"x\""}
PROPERTIES = {
    "city": {"type": "string", "description": "the city", "enum": ["Paris", "Zürich"]},
    "days": {"type": "integer", "default": 1},
    "units": {"type": ["string", "null"]},
    "deep": {"type": "object", "properties": {"x": {"type": "number"}, "l": {"type": "array", "items": {"type": "string"}}}},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather & <wind> in a city's \"streets\", été 日本",
        "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
    },
}
NOTHING = {"type": "function", "function": {"name": "none", "description": "Nothing", "parameters": {"type": "object", "properties": {}}}}


def call(arguments, name: str = "call00001") -> dict:
    """A call of a tool."""
    return {"id": name, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def result(content, name: str = "call00001") -> dict:
    """The result of a call."""
    return {"role": "tool", "name": "get_weather", "tool_call_id": name, "content": content}


HI = [message("user", "Hi")]
CALLED = [message("user", "Weather?"), message("assistant", "", tool_calls=[call(ARGUMENTS)]), result("sunny")]
# Messages, and what else `apply_chat_template` is given.
CONVERSATIONS = {
    "one message": (HI, {}),
    "system": ([message("system", " Be brief. "), message("user", "Why?\n"), message("assistant", "Because <b>&\"."), message("user", "Thanks")], {}),
    "tools": (HI, {"tools": [WEATHER, NOTHING]}),
    "no tools": (HI, {"tools": []}),
    "tool as a function": (HI, {"tools": [WEATHER["function"]]}),
    "calls": (
        [
            message("system", "Sys"), message("user", "Weather?"),
            message("assistant", "Let me see.", tool_calls=[call(ARGUMENTS), call({"city": "X"}, "call00002")]),
            result('{"t": 21}'), result("22", "call00002"), message("assistant", "It is 21."), message("user", "Tomorrow?"),
        ],
        {"tools": [WEATHER]},
    ),
    "arguments as text": ([CALLED[0], message("assistant", "", tool_calls=[call(json.dumps(ARGUMENTS))]), CALLED[2]], {"tools": [WEATHER]}),
    "no content": ([CALLED[0], message("assistant", None, tool_calls=[call(ARGUMENTS)]), CALLED[2], message("assistant", "Sunny.")], {"tools": [WEATHER]}),
    "reasoning and calls": (
        [
            CALLED[0], message("assistant", "", reasoning_content="I think", tool_calls=[call({"city": "P"})]), result([{"type": "text", "text": "r1"}]),
            message("assistant", "", tool_calls=[call({})]), result("r2"), message("assistant", "done"), message("user", "b"),
        ],
        {"tools": [WEATHER, NOTHING], "preserve_thinking": True},
    ),
    "parts": (
        [
            message("system", [{"type": "text", "text": "Sys"}]),
            message("user", [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]),
            message("assistant", [{"type": "text", "text": "answer"}]), message("user", [{"type": "image", "image": "x"}, {"type": "text", "text": "more"}]),
        ],
        {},
    ),
    "without thinking": ([HI[0], message("assistant", "<think>\nhm\n</think>\n\nHello"), message("user", "Again")], {"enable_thinking": False}),
    "thinking": (HI, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "reasoning": ([HI[0], message("assistant", "Hello", reasoning_content="Thinking.\n"), message("user", "Again"), message("assistant", "Yes", reasoning="again")], {}),
    "documents": (HI, {"documents": [{"title": "A title", "text": "Some text", "doc_id": 1}, {"title": "B", "text": "T2\nline"}]}),
    "continued": ([message("user", "Write"), message("assistant", "Once upon a time ")], {"continue_final_message": True}),
    "empty": ([message("user", ""), message("assistant", ""), message("user", " ")], {}),
    "developer": ([message("developer", "Dev"), HI[0]], {"tools": [WEATHER], "model_identity": "Me.", "builtin_tools": ["browser", "python"]}),
    "odd order": ([message("assistant", "first"), message("user", "second"), message("user", "third")], {}),
    "characters": ([message("user", "🦀 日本 é \u2028 \x7f \t\r\nend"), message("assistant", "ok\\n 'q' {{ x }} {% y %}")], {"date_string": "1 Jan 2025", "custom": 1.0}),
}


def theirs(tokenizer, template: str, messages: list, further: dict) -> str | None:
    """What transformers renders; `None` if the template refuses it."""
    prompts = not further.get("continue_final_message", False)
    try:
        return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=prompts, **further)
    except Exception:  # noqa: BLE001 - Jinja's and Python's errors alike
        return None


def ours(program: str, model: Path, folder: Path, messages: list, further: dict) -> tuple[str | None, str]:
    """What the program prints, and what it says if it refuses."""
    command = [program, "generate", "--model", str(model), "--print-prompt"]
    for name, value in {"messages": messages, **further}.items():
        if name in ("messages", "tools", "documents"):
            path = folder / f"{name}.json"
            path.write_text(json.dumps(value), encoding="utf-8")
            command += [f"--{name}", str(path)]
        elif name == "continue_final_message":
            command.append("--continue-final-message")
        else:
            command += ["--template-var", f"{name}={json.dumps(value)}"]
    done = subprocess.run(command, capture_output=True, check=False)
    return (done.stdout.decode() if done.returncode == 0 else None), done.stderr.decode()


def render(program: str, source: Path, tokenizer, path: Path) -> list[tuple[str, str, str]]:
    """For each conversation its name, what came of it, and how."""
    template = path.read_bytes().decode()
    found = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for file in ("config.json", "model.safetensors", "tokenizer.json"):
            (folder / file).symlink_to(source / file)
        (folder / "tokenizer_config.json").write_text(json.dumps(TOKENS), encoding="utf-8")
        (folder / "chat_template.jinja").write_bytes(path.read_bytes())
        for name, (messages, further) in CONVERSATIONS.items():
            expected = theirs(tokenizer, template, messages, further)
            text, said = ours(program, folder, folder, messages, further)
            if text == expected:
                found.append((name, "equal" if text is not None else "refused by both", ""))
            elif text is None:
                found.append((name, "fails only here", said.strip()))
            elif expected is None:
                found.append((name, "renders only here", ""))
            else:
                at = next((i for i, (a, b) in enumerate(zip(text, expected)) if a != b), min(len(text), len(expected)))
                found.append((name, "differs", f"{text[max(at - 20, 0):at + 40]!r}, expected {expected[max(at - 20, 0):at + 40]!r}"))
    return found


def main() -> None:
    """Renders all, and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, default=ROOT / "tiny-gpt-text", help="a checkpoint whose tokenizer opens")
    parser.add_argument("--show", type=int, default=20, help="how many differences are printed")
    args = parser.parse_args()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(args.model / "tokenizer.json"), **TOKENS)
    paths = sorted(args.folder.glob("*.jinja"))
    source = args.model.resolve()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda path: render(args.program, source, tokenizer, path), paths))
    counts: dict[str, int] = {}
    shown = 0
    for path, found in zip(paths, results):
        for name, kind, how in found:
            counts[kind] = counts.get(kind, 0) + 1
            if kind in ("fails only here", "differs") and shown < args.show:
                shown += 1
                print(f"{path.stem}, {name}: {kind}: {how}")
    print(f"{len(paths)} templates, {sum(counts.values())} renders: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    sys.exit(1 if counts.get("fails only here", 0) + counts.get("differs", 0) else 0)


if __name__ == "__main__":
    main()
