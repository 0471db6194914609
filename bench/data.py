"""Reading the benchmark at its full size: memory of workers, and the time for ground truth.

    python bench/data.py

Writes an index of 134,272 narratives in a temporary folder. Workers are spawned, not forked, so that
they share only the memory-mapped file. Private memory is read from Linux's /proc.
"""

import argparse
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate, pad

from ppmn.data.index import Narratives, write_index
from ppmn.data.narratives import AnnotatedPhrase, Narrative
from ppmn.data.panoptic import PanopticImage, Segment, read_ids
from ppmn.data.targets import targets_ppmn2022
from ppmn.images import ids_to_rgb, read_image

HEIGHT, WIDTH = 480, 640
RESIZED, PADDED = (800, 1067), (800, 1088)  # the same image at the network's input
IMAGES = 16  # files; the narratives share them
SEGMENTS = tuple(range(1001, 1001 + 40 * 977, 977))  # ids in every map


def make_images(root: Path) -> None:
    """Images of noise, each with a map of 40 segments in blobs."""
    for folder in ("images/train", "annotations/panoptic_segmentation/train"):
        (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    ys, xs = np.mgrid[:HEIGHT, :WIDTH]
    for n in range(IMAGES):
        centres = rng.uniform((0, 0), (HEIGHT, WIDTH), (len(SEGMENTS), 2))
        distances = np.stack([(ys - y) ** 2 + (xs - x) ** 2 for y, x in centres])
        ids = np.array(SEGMENTS, np.int32)[distances.argmin(0)]
        Image.fromarray(ids_to_rgb(ids)).save(root / f"annotations/panoptic_segmentation/train/{n}.png")
        noise = rng.integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((WIDTH, HEIGHT)).save(root / f"images/train/{n}.jpg")


def make_narratives(root: Path, count: int) -> list[Narrative]:
    """Narratives of the benchmark's size: 11 noun phrases, 5 of them grounded, 11 segments per image."""
    rng = np.random.default_rng(1)
    pngs = root / "annotations/panoptic_segmentation/train"
    narratives = []
    for n in range(count):
        chosen = rng.choice(SEGMENTS, 11, replace=False).tolist()
        segments = tuple(Segment(s, 1, 7_680, (0, 0, WIDTH, HEIGHT)) for s in chosen)
        file = n % IMAGES
        image = PanopticImage(
            n, root / f"images/train/{file}.jpg", pngs / f"{file}.png", HEIGHT, WIDTH, segments
        )
        caption = " ".join(f"word{word}" for word in rng.integers(0, 10_000, 40))
        phrases = (
            AnnotatedPhrase(9 * k, 9 * k + 8, tuple(chosen[k : k + 1][: k < 5]), True) for k in range(11)
        )
        narratives.append(Narrative(image, n, caption, tuple(phrases)))
    return narratives


def private_memory() -> tuple[int, int]:
    """(written, all) bytes that only this process has mapped."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    sizes = {k: int(v) * 1024 for k, v in re.findall(r"(Private_\w+):\s+(\d+) kB", rollup)}
    return sizes["Private_Dirty"], sizes["Private_Dirty"] + sizes["Private_Clean"]


def worker(seed: int, narratives: Narratives, reads: int, barrier: Barrier, answers: Any) -> None:
    torch.set_num_threads(1)
    before = private_memory()
    rng = np.random.default_rng(seed)
    for i in rng.integers(0, len(narratives), reads).tolist():
        item(narratives[i])
    barrier.wait()  # all have read, none has ended
    after = private_memory()
    barrier.wait()
    answers.put([(a - b) / 2**20 for a, b in zip(after, before, strict=True)])


def item(narrative: Narrative) -> None:
    read_image(narrative.image.file)
    rows = [p.segment_ids for p in narrative.grounded]
    targets_ppmn2022(narrative.image.ids(), rows, RESIZED, PADDED)


def memory(narratives: Narratives, workers: int, reads: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(workers), spawn.SimpleQueue()
    processes = [
        spawn.Process(target=worker, args=(n, narratives, reads, barrier, answers)) for n in range(workers)
    ]
    for process in processes:
        process.start()
    grown = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    size = narratives.file.stat().st_size / 2**20
    print(f"index: {len(narratives):,} narratives, {size:.0f} MB")
    for name, values in zip(("written", "mapped by it alone"), zip(*grown, strict=True), strict=True):
        print(
            f"private memory {name}, growth of {workers} workers over {reads:,} reads each: "
            f"{min(values):.1f} to {max(values):.1f} MB, at most {max(values) / size:.2f} of the index"
        )


def dense(ids: NDArray[np.int32], rows: list[tuple[int, ...]]) -> NDArray[np.bool_]:
    """The authors' way: full-size float masks, resized to the input and down again."""
    masks = torch.zeros(len(rows), *ids.shape)  # (N, H0, W0)
    for mask, row in zip(masks, rows, strict=True):
        for segment in row:
            mask.add_(torch.from_numpy(ids == segment))
    large = interpolate(masks[None], RESIZED, mode="bilinear", align_corners=False)
    large = pad(large, (0, PADDED[1] - RESIZED[1], 0, PADDED[0] - RESIZED[0]))
    small: NDArray[np.bool_] = (interpolate(large, scale_factor=0.25, mode="bilinear")[0] > 0).numpy()
    return small


def seconds(run: Callable[[], Any], times: int = 10) -> float:
    """The fastest of some runs."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def cost(root: Path) -> None:
    file = root / "annotations/panoptic_segmentation/train/0.png"
    ids = read_ids(file)
    rows = [(s,) for s in SEGMENTS[:20]] + [SEGMENTS[n : n + 3] for n in range(10)]
    if not (dense(ids, rows) == targets_ppmn2022(ids, rows, RESIZED, PADDED)).all():
        raise SystemExit("the two results differ")
    slow = seconds(lambda: dense(ids, rows))
    fast = seconds(lambda: targets_ppmn2022(ids, rows, RESIZED, PADDED))
    read = seconds(lambda: read_ids(file))
    print(
        f"ground truth of {len(rows)} phrases: dense {slow * 1e3:.1f} ms, ours {fast * 1e3:.1f} ms, "
        f"{slow / fast:.1f} times less; "
        f"with reading the id map, {read * 1e3:.1f} ms, {(slow + read) / (fast + read):.1f} times less"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--narratives", type=int, default=134_272)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--reads", type=int, default=1_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the workers
    with tempfile.TemporaryDirectory() as folder:
        root, index = Path(folder) / "data", Path(folder) / "narratives.index"
        make_images(root)
        cost(root)
        metadata = {
            "fingerprint": "synthetic",
            "categories": [],
            "complete": True,
            "skipped": 0,
            "images_without": 0,
            "expressions": 0,
            "problems": 0,
        }
        write_index(make_narratives(root, args.narratives), metadata, root, "train", index)
        memory(Narratives(root, "train", index), args.workers, args.reads)


if __name__ == "__main__":
    main()
