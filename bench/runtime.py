"""What each runtime costs: import and load, a 640x480 image, a caption of 55 words, peak memory.

python -m bench.runtime [--model compact] [--repeat 5] [--threads 2] [--only NAME ...]

Every row is measured in processes of its own; each step is the best of its repeats, in seconds and as a ratio
to a multiplication of 1024x1024 matrices that numpy does in the same process, because absolute times depend
on the machine. Where the session cache is used, the first load fills it and the second reads it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bench.ground import CAPTION, SIZE, best_time

if TYPE_CHECKING:
    from ppmn.grounding.grounder import Grounder

ROWS = ("torch float32", "torch bfloat16", "onnx float32", "onnx 8-bit")
STEPS = ("first load", "import and load", "encode", "caption")


def open_grounder(row: str, model: str, threads: int) -> "Grounder":
    """The model as a row of the table runs it."""
    import ppmn

    runtime, precision = row.split()
    if precision == "bfloat16":
        from ppmn.grounding import torch_runtime
        from ppmn.model.bfloat16 import has_bfloat16

        if not has_bfloat16():
            raise SystemExit("this processor has no bfloat16 instructions")
        setattr(torch_runtime, "bfloat16_is_faster", lambda: True)  # noqa: B010, also where it is slower
    wanted: Any = "float32" if precision == "float32" else "auto"
    grounder = ppmn.load(model, device="cpu", runtime=runtime, precision=wanted, threads=threads)  # type: ignore[arg-type]
    if grounder.runtime.precision != precision.replace("8-bit", "8 bits"):
        raise SystemExit(f"the model does not run so: its precision is {grounder.runtime.precision}")
    return grounder


def measure(row: str, model: str, repeat: int, threads: int) -> dict[str, float]:
    """The figures of one row; the process must not have imported ppmn before."""
    start = time.perf_counter()
    grounder = open_grounder(row, model, threads)
    figures = {"import and load": time.perf_counter() - start}
    image = Image.linear_gradient("L").resize(SIZE).convert("RGB")
    encoded = grounder.encode(image)
    if repeat:
        figures["encode"] = best_time(lambda: grounder.encode(image), repeat)
        figures["caption"] = best_time(lambda: [p.score for p in encoded.ground(CAPTION)], repeat)
    figures["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    square = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    figures["matrix"] = best_time(lambda: square @ square, 20)
    return figures


def run_child(row: str, args: argparse.Namespace, repeat: int, cache: str) -> dict[str, float] | str:
    """The figures of one process, or why there are none."""
    command = [sys.executable, "-m", "bench.runtime", "--child", row, "--model", args.model]
    command += ["--repeat", str(repeat), "--threads", str(args.threads)]
    settings = {f"{name}_NUM_THREADS": str(args.threads) for name in ("OMP", "OPENBLAS", "MKL")}
    settings["PPMN_CACHE"] = cache
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | settings)
    if child.returncode:
        return child.stderr.strip().splitlines()[-1]
    figures: dict[str, float] = json.loads(child.stdout)
    return figures


def run_row(row: str, args: argparse.Namespace) -> dict[str, float] | str:
    """The figures of one row, or why there are none."""
    with tempfile.TemporaryDirectory() as cache:
        first = run_child(row, args, 0, cache)
        found = run_child(row, args, args.repeat, cache)
    if isinstance(first, str) or isinstance(found, str):
        return str(found)
    return found | {"first load": first["import and load"]}


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
    print(f"{'':16}" + "".join(f"{step:>20}" for step in STEPS) + f"{'memory':>10}{'encode / first row':>20}")
    reference = 0.0
    for row in args.only:
        found = run_row(row, args)
        if isinstance(found, str):
            print(f"{row:16}  {found}", flush=True)
            continue
        reference = reference or found["encode"]
        cells = [f"{found[step]:.3f} ({found[step] / found['matrix']:.1f})" for step in STEPS]
        ratio = f"{found['encode'] / reference:.2f}"
        line = "".join(f"{cell:>20}" for cell in cells) + f"{found['memory']:7.2f} GB{ratio:>20}"
        print(f"{row:16}{line}", flush=True)


if __name__ == "__main__":
    main()
