"""What a person waits for: import and load, a look at a 640x480 photo, a caption of 50 words, and the memory.

python -m bench.ground [--model compact] [--repeat 5]

Each step is the best of its repeats in seconds of the clock, and as a ratio to a fixed matrix multiplication
that is timed in the same run, since machines are noisy.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from PIL import Image

SIZE = (640, 480)
CAPTION = (
    "In this image I can see two brown dogs lying on the green grass beside a red ball, and there is a woman "
    "wearing a blue jacket sitting on a wooden bench. In the background there are a few tall trees, a white "
    "house with windows, parked cars on the road and the cloudy sky."
)
LIMITS = {"import and load": 6.0, "look": 1.0, "caption": 0.25}  # seconds on two cores
MOST_MEMORY = 1.5  # GB


def best(action: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(model: str, repeat: int) -> dict[str, float]:
    """All of it in this process, which has loaded nothing of ppmn yet."""
    start = time.perf_counter()
    import ppmn

    grounder = ppmn.load(model)
    found = {"import and load": time.perf_counter() - start}
    photo = Image.linear_gradient("L").resize(SIZE).convert("RGB")
    look = grounder.encode(photo)
    found["look"] = best(lambda: grounder.encode(photo), repeat)
    found["caption"] = best(lambda: [p.score for p in look.ground(CAPTION)], repeat)
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    square = torch.randn(1024, 1024)
    found["matrix"] = best(lambda: square @ square, 20)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="compact")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(measure(args.model, args.repeat)))
        return
    command = [sys.executable, "-m", "bench.ground", "--inside", "--model", args.model]
    done = subprocess.run(
        [*command, "--repeat", str(args.repeat)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    found = json.loads(done.stdout)
    print(
        f"{args.model}, {SIZE[0]}x{SIZE[1]}, {len(CAPTION.split())} words, {torch.get_num_threads()} threads"
    )
    print(f"a matrix multiplication of 1024x1024: {1000 * found['matrix']:.1f} ms")
    for step, limit in LIMITS.items():
        ratio = found[step] / found["matrix"]
        print(f"{step:16} {found[step]:7.3f} s of {limit:g}   {ratio:8.1f} multiplications")
    print(f"{'peak memory':16} {found['memory']:7.2f} GB of {MOST_MEMORY:g}")


if __name__ == "__main__":
    main()
