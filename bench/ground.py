"""How long a user waits for import and load, a 640x480 image and a caption of 55 words; and the memory.

python -m bench.ground [--model compact] [--repeat 5]

Each step is the best of its repeats, in seconds and as a ratio to a fixed matrix multiplication that is timed
in the same run, because absolute times depend on the machine.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

SIZE = (640, 480)
CAPTION = (
    "In this image I can see two brown dogs lying on the green grass beside a red ball, and there is a woman "
    "wearing a blue jacket sitting on a wooden bench. In the background there are a few tall trees, a white "
    "house with windows, parked cars on the road and the cloudy sky."
)
LIMITS = {"import and load": 6.0, "encode": 1.0, "caption": 0.25}  # seconds on two cores
MEMORY_LIMIT = 1.5  # GB


def best_time(action: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(model: str, repeat: int) -> dict[str, float]:
    """All figures; the process must not have imported ppmn before."""
    start = time.perf_counter()
    import ppmn

    grounder = ppmn.load(model)
    figures = {"import and load": time.perf_counter() - start}
    image = Image.linear_gradient("L").resize(SIZE).convert("RGB")
    encoded = grounder.encode(image)
    figures["encode"] = best_time(lambda: grounder.encode(image), repeat)
    figures["caption"] = best_time(lambda: [p.score for p in encoded.ground(CAPTION)], repeat)
    figures["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    square = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    figures["matrix"] = best_time(lambda: square @ square, 20)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="compact", help="name or folder of a model (default: compact)")
    parser.add_argument("--repeat", type=int, default=5, help="calls per step (default: 5)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.model, args.repeat)))
        return
    command = [sys.executable, "-m", "bench.ground", "--child", "--model", args.model]
    command += ["--repeat", str(args.repeat)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode:
        sys.exit(child.stderr.strip().splitlines()[-1])
    figures = json.loads(child.stdout)
    cores = os.cpu_count()
    print(f"{args.model}, {SIZE[0]}x{SIZE[1]}, {len(CAPTION.split())} words, {cores} cores")
    print(f"one multiplication of 1024x1024 matrices: {1000 * figures['matrix']:.1f} ms")
    for step, limit in LIMITS.items():
        ratio = figures[step] / figures["matrix"]
        print(f"{step:16} {figures[step]:7.3f} s (limit {limit:g})   {ratio:8.1f} multiplications")
    print(f"{'peak memory':16} {figures['memory']:7.2f} GB (limit {MEMORY_LIMIT:g})")


if __name__ == "__main__":
    main()
