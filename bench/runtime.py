"""What each runtime costs: import and load, a 640x480 image, a caption of 55 words, peak memory.

python -m bench.runtime [--model compact] [--repeat 5] [--threads 2] [--only NAME ...]

Every row is measured in a process of its own; each step is the best of its repeats, in seconds and as a ratio
to a multiplication of 1024x1024 matrices that numpy does in the same process, because absolute times depend
on the machine. The 8-bit row quantises the linear layers of the image graph dynamically; it needs the
package onnx, and the time of quantising is not part of its load.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bench.ground import CAPTION, SIZE, best_time

if TYPE_CHECKING:
    from ppmn.grounding.grounder import Grounder

ROWS = ("torch float32", "torch bfloat16", "onnx float32", "onnx 8-bit")
STEPS = ("import and load", "encode", "caption")


def open_grounder(row: str, model: str, threads: int) -> "Grounder":
    """The model as a row of the table runs it."""
    import ppmn

    grounder = ppmn.load(model, device="cpu", runtime="onnx" if "onnx" in row else "torch", threads=threads)
    if row.startswith("torch"):
        from ppmn.grounding import torch_runtime

        wanted = row.endswith("bfloat16")
        if wanted and not torch_runtime.has_bfloat16():
            raise SystemExit("this processor has no bfloat16 instructions")
        torch_runtime.has_bfloat16 = lambda: wanted
    return grounder


def quantise(grounder: "Grounder", model: str, threads: int) -> None:
    """Replace the image session of a grounder by one whose matrix products with weights are in 8 bits."""
    import onnx
    import onnxruntime as ort
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from ppmn.grounding.onnx_runtime import GRAPHS_FOLDER, OnnxRuntime
    from ppmn.model.locate import model_folder

    runtime = grounder.runtime
    assert isinstance(runtime, OnnxRuntime)
    proto = onnx.load(model_folder(model) / GRAPHS_FOLDER / "image.onnx", load_external_data=False)
    for tensor in proto.graph.initializer:
        if tensor.name in runtime.weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(runtime.weights[tensor.name], tensor.name))
    with tempfile.TemporaryDirectory() as folder:
        whole, small = Path(folder) / "whole.onnx", Path(folder) / "small.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # folds transposes
        options.optimized_model_filepath = str(whole)
        ort.InferenceSession(proto.SerializeToString(), options)
        kinds = ["MatMul", "Gemm"]
        quantize_dynamic(
            whole, small, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=kinds
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        runtime.sessions["image"] = ort.InferenceSession(small, options)


def measure(row: str, model: str, repeat: int, threads: int) -> dict[str, float]:
    """The figures of one row; the process must not have imported ppmn before."""
    start = time.perf_counter()
    grounder = open_grounder(row, model, threads)
    figures = {"import and load": time.perf_counter() - start}
    if row.endswith("8-bit"):
        quantise(grounder, model, threads)
    image = Image.linear_gradient("L").resize(SIZE).convert("RGB")
    encoded = grounder.encode(image)
    figures["encode"] = best_time(lambda: grounder.encode(image), repeat)
    figures["caption"] = best_time(lambda: [p.score for p in encoded.ground(CAPTION)], repeat)
    figures["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    square = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    figures["matrix"] = best_time(lambda: square @ square, 20)
    return figures


def run_row(row: str, args: argparse.Namespace) -> dict[str, Any] | str:
    """The figures of one row from a process of its own, or why there are none."""
    command = [sys.executable, "-m", "bench.runtime", "--child", row, "--model", args.model]
    command += ["--repeat", str(args.repeat), "--threads", str(args.threads)]
    limits = {f"{name}_NUM_THREADS": str(args.threads) for name in ("OMP", "OPENBLAS", "MKL")}
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | limits)
    if child.returncode:
        return child.stderr.strip().splitlines()[-1]
    figures: dict[str, Any] = json.loads(child.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="compact", help="name or folder of a model (default: compact)")
    parser.add_argument("--repeat", type=int, default=5, help="calls per step (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of an operation (default: 2)")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=ROWS, help="rows to measure")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.model, args.repeat, args.threads)))
        return
    print(f"{args.model}, {SIZE[0]}x{SIZE[1]}, {len(CAPTION.split())} words, {args.threads} threads")
    print("seconds, and in parentheses multiplications of 1024x1024 matrices")
    print(f"{'':16}" + "".join(f"{step:>22}" for step in STEPS) + f"{'peak memory':>14}")
    for row in args.only:
        found = run_row(row, args)
        if isinstance(found, str):
            print(f"{row:16}  {found}", flush=True)
            continue
        cells = [f"{found[step]:.3f} ({found[step] / found['matrix']:.1f})" for step in STEPS]
        print(
            f"{row:16}" + "".join(f"{cell:>22}" for cell in cells) + f"{found['memory']:11.2f} GB", flush=True
        )


if __name__ == "__main__":
    main()
