"""Changes every key of small GGUF files, one at a time, and compares the program with llama.cpp.

    npm install node-llama-cpp                                     # in any folder: NODE
    python weights/sweep/gguf_keys.py PROGRAM NODE [--table FILE]  # some minutes; exits with 1 if anything differs silently

Each of the committed files of a decoder is written anew with another value of a key, or with a key that it lacks. Greedy tokens
of four prompts tell whether llama.cpp reads the key. Where they change, the program must give the same tokens, or refuse the file
by the key's name; where they do not, it must not change either.
"""

import argparse
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy

ROOT = Path(__file__).parent.parent
FILES = ["llama", "llama3", "mixtral", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma2", "gemma3", "phi3", "gpt2"]
N_TOKENS = 10
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 4}

# Named changes of keys, without the architecture.
CHANGES = [
    {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    {"rope.scaling.factor": 4.0}, {"rope.scale_linear": 4.0}, {"rope.scaling.type": "longrope"}, {"rope.scaling.type": "other"},
    YARN, YARN | {"rope.scaling.attn_factor": 3.0}, YARN | {"rope.scaling.yarn_ext_factor": 0.25}, YARN | {"rope.scaling.yarn_log_multiplier": 0.7},
    YARN | {"rope.scaling.yarn_beta_fast": 2.0}, YARN | {"rope.scaling.yarn_beta_slow": 0.1}, YARN | {"rope.scaling.yarn_attn_factor": 3.0},
    {"rope.scaling.attn_factor": 3.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 3.0},
    {"rope.scaling.alpha": 50.0}, {"rope.scaling.finetuned": True}, {"rope.freq_base": 20.0}, {"rope.freq_base_swa": 20.0},
    {"rope.dimension_count": 4}, {"rope.dimension_count_swa": 4},
    {"attention.causal": False}, {"attention.scale": 3.0}, {"attention.clamp_kqv": 0.05}, {"attention.max_alibi_bias": 8.0},
    {"attention.layer_norm_rms_epsilon": 5.0}, {"attention.layer_norm_epsilon": 5.0}, {"attention.sliding_window": 2},
    {"attention.sliding_window_pattern": 2, "attention.sliding_window": 2}, {"attention.sliding_window_pattern": 1, "attention.sliding_window": 2},
    {"attention.key_length_swa": 4}, {"attention.value_length_swa": 4}, {"attention.value_length": 4},
    {"logit_scale": 0.1}, {"residual_scale": 3.0}, {"embedding_scale": 9.0}, {"attn_logit_softcapping": 0.1}, {"final_logit_softcapping": 0.01},
    {"expert_weights_scale": 5.0}, {"expert_weights_norm": True}, {"expert_weights_norm": False}, {"expert_gating_func": 2}, {"expert_used_count": 1},
    {"expert_group_count": 2, "expert_group_used_count": 1}, {"nextn_predict_layers": 1}, {"leading_dense_block_count": 1}, {"expert_shared_count": 1},
    {"context_length": 64}, {"pooling_type": 1}, {"use_parallel_residual": True}, {"tensor_data_layout": "any"}, {"something_new": 1},
    {"attention.head_count_kv": "each"}, {"feed_forward_length": "each"}, {"attention.head_count": "each"}, {"feed_forward_length": "unequal"},
]

JUDGE = """
import {getLlama} from "node-llama-cpp"; import fs from "fs";
const {files, prompts, n} = JSON.parse(fs.readFileSync(process.argv[2]));
const llama = await getLlama({gpu: false, build: "never", logLevel: "disabled"});
const all = {};
for (const file of files) {
  try {
    const model = await llama.loadModel({modelPath: file, gpuLayers: 0});
    const context = await model.createContext({contextSize: 64, flashAttention: false, threads: 1});
    const rows = [];
    for (const prompt of prompts) {
      const sequence = context.getSequence(); const row = [];
      for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) { row.push(token); if (model.isEogToken(token) || row.length >= n) break; }
      rows.push(row); sequence.dispose();
    }
    all[file] = rows; await context.dispose(); await model.dispose();
  } catch (error) { all[file] = String(error); }
  fs.writeFileSync(process.argv[3], JSON.stringify(all));
}
process.exit(0);
"""


def rewritten(source: Path, path: Path, change: dict) -> None:
    """A copy with other keys, and words for the judge."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    n_blocks = reader.fields[f"{arch}.block_count"].contents()
    change = dict(change)
    for key, value in change.items():
        if value in ("each", "unequal"):
            found = reader.fields.get(f"{arch}.{key}") or reader.fields[f"{arch}.attention.head_count"]
            change[key] = [found.contents()] * n_blocks
            if value == "unequal":
                change[key][-1] *= 2
    writer = gguf.GGUFWriter(path, arch)
    add = lambda key, value: (
        writer.add_bool(key, value) if isinstance(value, bool) else writer.add_uint32(key, value) if isinstance(value, int)
        else writer.add_float32(key, value) if isinstance(value, float) else writer.add_string(key, value) if isinstance(value, str)
        else writer.add_array(key, value)
    )
    for key, field in reader.fields.items():
        if key.startswith(("GGUF.", "tokenizer.")) or key == "general.architecture" or key.removeprefix(f"{arch}.") in change:
            continue
        add(key, field.contents())
    for key, value in change.items():
        add(f"{arch}.{key}", value)
    n = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight").shape[1]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<s>", "<pad>", "</s>"] + [f"w{i}" for i in range(3, n)])
    writer.add_token_types([3, 3, 3] + [1] * (n - 3))
    writer.add_token_merges(["w3 w4"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    for tensor in reader.tensors:
        # As numbers: beside codes llama.cpp rounds what they are multiplied by.
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(numbers, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def ours(program: str, path: Path, prompts: Path) -> list | str:
    """Tokens of the program, or what it says."""
    out = path.with_suffix(".safetensors")
    run = [program, "generate", "--model", path, "--input-ids", prompts, "--max-new-tokens", str(N_TOKENS), "--output", out]
    done = subprocess.run(run, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return safetensors.numpy.load_file(out)["tokens"].tolist()


def same(one: list, other: list) -> bool:
    """Rows of the program are filled up behind their ends."""
    return all(list(a[: len(b)]) == list(b) for a, b in zip(one, other))


# Keys that transformers reads of the model's own configuration, and llama.cpp does not for these architectures.
AS_TRANSFORMERS = {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor", "attention.sliding_window"}


def verdict(change: dict, base: tuple, found: tuple) -> str:
    (program, judge), (program_base, judge_base) = found, base
    if isinstance(program, str):
        named = any(key in program for key in change) or "tensor" in program
        return "refused" if named else f"REFUSED WITHOUT ITS NAME: {program}"
    if isinstance(judge, str):
        return "read; llama.cpp refuses" if program != program_base else "changes nothing; llama.cpp refuses"
    if same(program, judge):
        return "read" if judge != judge_base else "changes nothing"
    if AS_TRANSFORMERS & change.keys():
        return "as transformers, which llama.cpp does not read"
    return "DIFFERS" if program == program_base else "DIFFERS: read otherwise"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("node", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    verdicts = collections.defaultdict(lambda: collections.defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rng = np.random.default_rng(1)
        ids = rng.integers(3, 10, (4, 6))  # words that all of them have
        prompts = folder / "prompts.safetensors"
        safetensors.numpy.save_file({"input_ids": ids}, prompts)
        cases = []
        for name in FILES:
            for i, change in enumerate([{}, *CHANGES]):
                path = folder / f"{name}-{i}.gguf"
                rewritten(ROOT / "gguf" / name / "model.gguf", path, change)
                key = " + ".join(f"{key}={value}" for key, value in change.items())
                cases.append((name, key, change, path))
        judged, left = {}, [str(path) for *_, path in cases]
        (arguments.node / "judge.mjs").write_text(JUDGE)
        while left:
            (folder / "cases.json").write_text(json.dumps({"files": left, "prompts": ids.tolist(), "n": N_TOKENS}))
            (folder / "judged.json").write_text("{}")
            done = subprocess.run(["node", "judge.mjs", folder / "cases.json", folder / "judged.json"], cwd=arguments.node, capture_output=True)
            judged |= json.loads((folder / "judged.json").read_text())
            left = [path for path in left if path not in judged]
            if done.returncode and left:  # an assertion of llama.cpp's ends its process
                judged[left.pop(0)] = "it ended"
        base = {}
        for name, key, change, path in cases:
            found = ours(arguments.program, path, prompts), judged[str(path)]
            if not key:
                assert not isinstance(found[0], str), (name, found)
                if isinstance(found[1], str) or not same(*found):
                    print(f"LEFT OUT: {name}, for which llama.cpp says {found[1]}, and this program {found[0]}", file=sys.stderr)
                    continue
                base[name] = found
                continue
            if name not in base:
                continue
            verdicts[key][verdict(change, base[name], found)].append(name)
    lines = ["| keys | verdict |", "|---|---|"]
    for key, by_verdict in verdicts.items():
        said = "; ".join(f"{verdict}: {', '.join(names) if len(names) < len(FILES) else 'all'}" for verdict, names in by_verdict.items())
        lines.append(f"| `{key}` | {said} |")
    table = "\n".join(lines)
    print(table)
    wrong = [line for line in lines if "DIFFERS" in line or "WITHOUT" in line]
    print(f"{len(CHANGES)} changes of {len(FILES)} files: {len(wrong)} lines with differences", file=sys.stderr)
    if arguments.table:
        arguments.table.write_text(table + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
