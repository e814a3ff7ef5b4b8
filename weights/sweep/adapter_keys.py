"""Does each key of adapter_config.json change our numbers as it changes PEFT's?

    python weights/sweep/adapter_keys.py PROGRAM [KIND ...] [--keys PATTERN] [--out FILE]

Of each adapter in `weights/adapters`, whose tensors stay as they are, one key is changed at a time: all fields of PEFT's
`LoraConfig` and of the configurations inside it. `PeftModel.from_pretrained` and `PROGRAM run --adapter` compute the same
input. One line of JSON for each change, with one of these verdicts:

    same            both compute the same (with `changed`: something else than before the change)
    refused         the program refuses, and names the key (of several, one)
    fails           PEFT does not load it (with `ours`: what the program does)
    SILENT          the numbers differ: a fault
    UNNAMED         the program refuses without the key's name: a fault
"""

import start  # first: it lets the others be found

import collections
import copy
import dataclasses
import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import config as lora

from fixtures import tensor_file
from fixtures.adapters import CLASSES, KINDS, load, output
from sweep.subject import SECONDS, TOLERANCE, scratch

ROOT = Path(__file__).resolve().parents[1]
FILES = ("adapter_config.json", "adapter_model.safetensors")

# The changes of a key; with several keys, the first is the one that is meant.
VALUES = {
    "r": [1, 3, 0, None],
    "lora_alpha": [1, 7.5, 0, -3, None],
    "lora_dropout": [0.5],
    "use_rslora": [True, False],
    "use_dora": [True, False],
    "lora_bias": [True, False],
    "bias": ["all", "lora_only", "none", "other"],
    "fan_in_fan_out": [True, False],
    "rank_pattern": [{}, {"q_proj": 1}, {".*": 2}, {".*": 3}, {"down_proj": 2}, {"gate_up_proj": 2}, None],
    "alpha_pattern": [{}, {"q_proj": 7}, {".*": 5}, {"^model.layers.1.self_attn.v_proj": 3}, {"v_proj": 3, "down_proj": 2.5}, {"c_attn": 9}, {"gate_up_proj": 9}, {"down_proj": 0}, {"gate.weight": 3}, {"layers.1.mlp.experts.down_proj": 3}, {"nothing": 1}],
    "target_modules": [None, [], "all-linear", "ALL-LINEAR", ["q_proj"], ".*q_proj", r".*\.(q_proj|v_proj|down_proj|o_proj|embed_tokens)", "q_proj", "["],
    "exclude_modules": [None, [], ["v_proj"], r".*layers\.0.*", "layers", ["c_fc", "query"], ["nothing"]],
    "layers_to_transform": [None, [], 0, 1, [0], [1], [0, 1], [5]],
    "layers_pattern": [
        {"layers_pattern": "layers", "layers_to_transform": [0]},
        {"layers_pattern": ["layers"], "layers_to_transform": [0, 1]},
        {"layers_pattern": ["h", "layer"], "layers_to_transform": [0, 1]},
        {"layers_pattern": [], "layers_to_transform": [0, 1]},
        {"layers_pattern": "blocks", "layers_to_transform": [0, 1]},
        {"layers_pattern": "layers"},
    ],
    "modules_to_save": [None, [], ["lm_head"], ["q_proj"], ["embed_tokens"], ["classifier"], ["score"], ["nothing"]],
    "init_lora_weights": [False, True, "gaussian", "eva", "orthogonal", "lora_ga", "mica", "olora", "pissa", "pissa_niter_4", "corda", "loftq", "other"],
    "trainable_token_indices": [None, [], [1, 2], [5, 2], {"embed_tokens": [2, 5]}, {"embed_tokens": [1, 3]}, {"lm_head": [2, 5]}],
    "ensure_weight_tying": [True, False],
    "target_parameters": [None, [], ["experts.down_proj"], ["experts.gate_up_proj", "experts.down_proj"], ["q_proj.weight"], ["self_attn.v_proj.weight", "q_proj.weight", "down_proj.weight"], ["nothing"]],
    "layer_replication": [None, [], [[0, 1], [0, 2]], [[0, 2]]],
    "megatron_config": [None, {}, {"tensor_model_parallel_size": 2}],
    "megatron_core": ["megatron.other", None],
    "alora_invocation_tokens": [None, [], [1, 2]],
    "use_qalora": [True, False],
    "qalora_group_size": [4],
    "use_bdlora": [None, dataclasses.asdict(lora.BdLoraConfig()), dataclasses.asdict(lora.BdLoraConfig(["q_proj"], ["down_proj"], 2, False))],
    "arrow_config": [None, dataclasses.asdict(lora.ArrowConfig())],
    "kasa_config": [None, dataclasses.asdict(lora.KasaConfig())],
    "monteclora_config": [None, dataclasses.asdict(lora.MontecloraConfig())],
    "eva_config": [None, dataclasses.asdict(lora.EvaConfig()), dataclasses.asdict(lora.EvaConfig(rho=1.0, tau=0.5))],
    "corda_config": [None, dataclasses.asdict(lora.CordaConfig())],
    "lora_ga_config": [None, dataclasses.asdict(lora.LoraGAConfig())],
    "velora_config": [None, dataclasses.asdict(lora.VeloraConfig())],
    "loftq_config": [{}, dataclasses.asdict(lora.LoftQConfig()), {"loftq_bits": 2}],
    "runtime_config": [dataclasses.asdict(lora.LoraRuntimeConfig()), {"ephemeral_gpu_offload": True}],
    "peft_type": ["lora", "IA3", "LOHA", "ADALORA", None],
    "task_type": [None, "CAUSAL_LM", "SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION", "OTHER"],
    "auto_mapping": [None, {"base_model_class": "LlamaForCausalLM", "parent_library": "transformers.models.llama.modeling_llama"}, {"base_model_class": "OtherClass", "parent_library": "other"}],
    "base_model_name_or_path": [None, "", "someone/base"],
    "revision": [None, "main"],
    "inference_mode": [True, False],
    "peft_version": ["0.5.0", None],
    "nobodys": [7],
}
# The other tasks, whose classes the judge does not build for a base whose class is the adapter's to say.
OTHER_TASKS = ("CAUSAL_LM", "TOKEN_CLS", "QUESTION_ANS", "SEQ_2_SEQ_LM")
# What loftq needs beside it.
BESIDE = {"loftq": {"loftq_config": {"loftq_bits": 4}}}


def changes(config: dict) -> list[tuple[str, object, dict]]:
    """Each key with other values, and the whole configuration with them."""
    absent = {field.name for field in dataclasses.fields(LoraConfig)} - VALUES.keys()
    assert not absent, f"no values of {absent}"
    found = []
    for key, values in VALUES.items():
        for value in values:
            several = value if key == "layers_pattern" else {key: value}
            if any(config.get(name) != new for name, new in several.items()) or any(name not in config for name in several):
                beside = BESIDE.get(value, {}) if isinstance(value, str) else {}
                found.append((key, value, {**copy.deepcopy(config), **several, **beside}))
        if key in config:
            found.append((key, "ABSENT", {name: old for name, old in config.items() if name != key}))
    return found


def judged(name: str, folder: Path, given: dict) -> torch.Tensor:
    """What PEFT computes."""
    torch.manual_seed(0)
    model = PeftModel.from_pretrained(load(ROOT, KINDS[name], torch.float32), folder)
    return output(model.eval(), given).double()


def computed(program: Path, name: str, folder: Path, given: dict) -> tuple[torch.Tensor | None, str]:
    """What the program computes, and what it says."""
    paths = [folder / "input.safetensors", folder / "output.safetensors"]
    tensor_file.write(paths[0], given, {})
    paths[1].unlink(missing_ok=True)
    command = [program, "run", "--model", ROOT / KINDS[name].base, "--adapter", folder, "--input", paths[0], "--output", paths[1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        return None, done.stderr.strip()
    seen = tensor_file.read(paths[1])
    return seen.get("logits", seen["last_hidden_state"]).double(), done.stderr.strip()


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far two results are apart, of the largest value."""
    if one.shape != other.shape:
        return float("inf")
    return ((one - other).abs().max() / other.abs().max()).nan_to_num(float("inf")).item()


def sweep(program: Path, name: str, pattern: str):
    """A record for each change."""
    source = ROOT / "adapters" / name
    config = json.loads((source / FILES[0]).read_text())
    expected = tensor_file.read(source / "expected.safetensors")
    given = {key: tensor for key, tensor in expected.items() if not key.startswith("output")}
    with scratch() as directory:
        folder = Path(directory)
        (folder / FILES[1]).write_bytes((source / FILES[1]).read_bytes())
        for key, value, described in changes(config):
            if not fnmatch.fnmatch(key, pattern):
                continue
            if KINDS[name].base in CLASSES and (key == "auto_mapping" or value in OTHER_TASKS):
                continue
            several = value if key == "layers_pattern" and isinstance(value, dict) else {key: value}
            (folder / FILES[0]).write_text(json.dumps(described))
            ours, said = computed(program, name, folder, given)
            record = {"kind": name, "path": key, "value": value}
            try:
                judge = judged(name, folder, given)
            except (Exception, SystemExit) as failed:
                yield record | {"verdict": "fails", "why": f"{type(failed).__name__}: {failed}"[:200], "ours": said[:300] or "runs"}
                continue
            record["changed"] = apart(judge, expected["output"].double()) > TOLERANCE
            if ours is None:
                is_named = any(re.search(rf"\b{one}\b", said) for one in several)
                yield record | {"verdict": "refused" if is_named else "UNNAMED", "said": said[:400]}
                continue
            off = apart(ours, judge)
            record |= {"notes": said[:300]} if said else {}
            yield record | ({"verdict": "same"} if off <= TOLERANCE else {"verdict": "SILENT", "apart": off})


def main() -> None:
    parser = start.options(__doc__, "lines of JSON are added here")
    parser.add_argument("kinds", nargs="*")
    args = parser.parse_args()
    out = args.out.open("a") if args.out else sys.stdout
    counts = collections.Counter()
    for name in args.kinds or KINDS:
        for record in sweep(args.program.resolve(), name, args.keys):
            counts[record["verdict"]] += 1
            print(json.dumps(record), file=out, flush=True)
        print(name, dict(counts), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
