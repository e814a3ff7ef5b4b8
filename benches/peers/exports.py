"""Files for runtimes that read no checkpoint, written by a separate process, so that the measured process loads no
PyTorch.

    exports.py onnx|openvino|onnx-int4|openvino-int4|gguf-f32|gguf-bf16|gguf-q8_0|.. CHECKPOINT FOLDER
"""

import subprocess
import sys
from pathlib import Path


def exported(task, kind: str) -> Path:
    """Returns the folder with files of this kind, and writes them if they are missing."""
    return export(task.checkpoint, task.exports, kind)


def export(checkpoint: Path, exports: Path, kind: str) -> Path:
    folder = exports / kind
    if not folder.exists():
        part = folder.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([sys.executable, __file__, kind, str(checkpoint), str(part)])
        if done.returncode != 0:
            raise RuntimeError(f"{kind}: the export fails; its messages are above")
        part.rename(folder)
    return folder


def write(kind: str, checkpoint: Path, folder: Path):
    import modules

    weights = modules.Weights(checkpoint)
    match kind:
        case "onnx" | "onnx-int4":
            import export_onnx

            export_onnx.write(weights, folder, is_int4=kind.endswith("int4"))
        case "openvino" | "openvino-int4":
            import export_openvino

            export_openvino.write(weights, folder, is_int4=kind.endswith("int4"))
        case "gguf-f32" | "gguf-bf16":
            import export_gguf

            export_gguf.write(weights, kind.removeprefix("gguf-"), folder)
        case _ if kind.startswith("gguf-"):
            import export_gguf

            export_gguf.write_coded(weights, kind.removeprefix("gguf-"), folder)
        case _:
            sys.exit(f"nothing is exported to {kind}")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
