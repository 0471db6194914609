"""Small corpora of random images, and what one process makes of them."""

import io
import json
import tarfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from pycocotools import mask as rle
from support.models import bert_folder, small_ppmn

import ppmn
from ppmn.grounding.corpus_shards import ResultFolder
from ppmn.grounding.corpus_sources import CorpusSource
from ppmn.grounding.corpus_worker import ChunkWorker, CorpusSettings
from ppmn.images import encode_rle
from ppmn.model.folder import save_model

CAPTIONS = (
    "a red dog on the grass",
    "two cats and a ball",
    "a person in the sky",
    "the tree and a blue ball",
)
COMPARED = ("image", "caption", "phrase", "span", "score", "area", "box", "rle")


def random_model(folder: Path) -> str:
    """A model folder with random weights."""
    save_model(small_ppmn(bert_folder(folder / "bert")), folder / "model")
    return str(folder / "model")


def image_bytes(number: int, side: int = 96) -> bytes:
    rng = np.random.default_rng(number)
    height, width = rng.integers(side // 2, side, 2)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def bomb() -> bytes:
    """A small file of 16,000 x 16,000 pixels."""
    buffer = io.BytesIO()
    Image.new("1", (16_000, 16_000)).save(buffer, "PNG")
    return buffer.getvalue()


def caption_of(number: int) -> str:
    return CAPTIONS[number % len(CAPTIONS)]


def write_images(folder: Path, count: int) -> Path:
    """Images of several sizes with their captions, in two sub-folders."""
    for number in range(count):
        file = folder / ("a" if number % 2 else "b") / f"{number:05d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image_bytes(number))
        file.with_suffix(".txt").write_text(caption_of(number))
    return folder


def single_process_rows(model: str, folder: Path) -> list[dict[str, Any]]:
    """What one process with one thread finds, in the order of the images' names."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    grounder = ppmn.load(model, device="cpu")
    rows = []
    for file in sorted(folder.rglob("*.png")):
        grounding = grounder.ground(file, file.with_suffix(".txt").read_text())
        for phrase in grounding:
            box = None if phrase.box is None else list(phrase.box)
            values = (
                file.as_posix(),
                grounding.caption,
                phrase.text,
                list(phrase.span),
                phrase.score,
                phrase.area,
                box,
            )
            rows.append(dict(zip(COMPARED, (*values, encode_rle(phrase.mask)), strict=True)))
    torch.set_num_threads(threads)
    return rows


def shard_rows(out: Path, folder: str = "shards") -> list[dict[str, Any]]:
    """The rows of all shards, in the order of the images' names."""
    files = sorted((out / folder).glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).select(COMPARED).to_pylist()]
    return sorted(rows, key=lambda row: row["image"])  # stable: phrases keep their order


def write_tar(file: Path, count: int) -> Path:
    with tarfile.open(file, "w") as tar:
        for number in range(count):
            caption = json.dumps({"caption": caption_of(number)}).encode()
            for suffix, content in (("png", image_bytes(number)), ("json", caption)):
                member = tarfile.TarInfo(f"{number:05d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file


def parquet_of(file: Path, **columns: list[Any]) -> Path:
    pq.write_table(pa.table(columns), file, row_group_size=5)
    return file


def assert_nearly_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Check that runs of different threads or batches agree, as docs/scale.md says."""
    for name in ("image", "phrase", "span"):
        assert [row[name] for row in found] == [row[name] for row in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert abs(mine["score"] - theirs["score"]) <= 1e-3
        if mine["area"] or theirs["area"]:
            assert rle.iou([mine["rle"]], [theirs["rle"]], [0])[0][0] >= 0.999


def ground_here(source: str, out: str | Path, model: str, threads: int = 1, **options: Any) -> Counter[str]:
    """Ground all chunks in this process, as the actors do; the sums of what they report."""
    before = torch.get_num_threads()
    settings = CorpusSettings.of(model, **options)
    results = ResultFolder(str(out))
    results.prepare()
    chunks = list(CorpusSource(source, shard_size=4, leave_out=str(out), caption=settings.caption).chunks())
    worker = ChunkWorker(settings, str(out), "cpu", threads)
    counts: Counter[str] = Counter()
    for report in (worker(asdict(chunk)) for chunk in chunks):
        assert not report["fault"]
        counts.update(images=report["images"], errors=report["errors"], phrases=report["phrases"])
        counts["computed"] += report["images"] if report["computed"] else 0
    torch.set_num_threads(before)
    results.keep_only({chunk.name for chunk in chunks})
    results.finish({"shards": len(chunks)})
    return counts
