"""How much faster the closed forms of Average Recall are than the loop over 100,000 thresholds.

python bench/metrics.py [NUMBER OF PHRASES]
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from ppmn.evaluation.metrics import average_recall


def threshold_loop(ious: list[float]) -> float:
    """The area under the recall curve as defined: one recall per threshold, then their sum."""
    recalls = [float(np.mean(np.asarray(ious) >= i * 1e-5)) for i in range(100_000)]
    return sum(1e-5 * recall for recall in recalls[:-1])


def threshold_loop_on_array(ious: list[float]) -> float:
    """The same, with the list converted to an array only once."""
    array = np.asarray(ious)
    recalls = [float(np.mean(array >= i * 1e-5)) for i in range(100_000)]
    return sum(1e-5 * recall for recall in recalls[:-1])


def timed(function: Callable[[], float], repeats: int) -> tuple[float, float]:
    """The value, and the shortest processor time of the repeats in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        value = function()
        times.append(time.process_time() - start)
    return value, min(times)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    ious = np.random.default_rng(0).random(count).tolist()
    average_recall(ious, "ppmn2022")  # builds its table of thresholds
    slow = {"loop, list": timed(lambda: threshold_loop(ious), 1)}
    slow["loop, array"] = timed(lambda: threshold_loop_on_array(ious), 1)
    for name, (value, seconds) in slow.items():
        print(f"{name:<12} {value:.8f}  {seconds * 1e3:12.3f} ms   ({count} phrases)")
    for protocol in ("full", "ppmn2022"):
        value, seconds = timed(lambda p=protocol: average_recall(ious, p), 20)  # type: ignore[misc]
        ratios = ", ".join(f"{s / seconds:,.0f} times faster than {name}" for name, (_, s) in slow.items())
        print(f"{protocol:<12} {value:.8f}  {seconds * 1e3:12.3f} ms   {ratios}")


if __name__ == "__main__":
    main()
