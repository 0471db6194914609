"""Corpora: sources, chunks, shards and failures, in one process without Ray."""

import builtins
import io
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.corpus import (
    assert_nearly_equal,
    bomb,
    caption_of,
    ground_here,
    image_bytes,
    parquet_of,
    random_model,
    shard_rows,
    single_process_rows,
    write_images,
    write_tar,
)

from ppmn.cli import main
from ppmn.errors import InputError
from ppmn.grounding import corpus_run, corpus_worker
from ppmn.grounding.corpus_items import CorpusItem
from ppmn.grounding.corpus_shards import ResultFolder, write_coco
from ppmn.grounding.corpus_sources import CorpusSource, read_chunk
from ppmn.grounding.corpus_worker import ChunkWorker, CorpusSettings, ahead, size_batches

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 12)


def test_rows_equal_the_plain_loop(images: Path, model: str, tmp_path: Path) -> None:
    counts = ground_here(str(images), tmp_path / "out", model)
    expected = single_process_rows(model, images)
    assert shard_rows(tmp_path / "out") == expected and len(expected) > 12
    assert counts == {"images": 12, "errors": 0, "phrases": len(expected), "computed": 12}


@pytest.mark.parametrize(("batch_size", "threads"), [(3, 1), (1, 2)])
def test_other_settings_find_nearly_the_same(
    model: str, tmp_path: Path, batch_size: int, threads: int
) -> None:
    images = write_images(tmp_path / "images", 6)
    ground_here(str(images), tmp_path / "out", model, threads=threads, batch_size=batch_size)
    assert_nearly_equal(shard_rows(tmp_path / "out"), single_process_rows(model, images))


@pytest.mark.soak
def test_other_settings_of_the_included_model_find_nearly_the_same(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 8)
    ground_here(str(images), tmp_path / "out", "compact", threads=2, batch_size=4)
    assert_nearly_equal(shard_rows(tmp_path / "out"), single_process_rows("compact", images))


@given(st.lists(st.integers(1, 3), max_size=40), st.integers(1, 5))
def test_every_image_is_in_one_batch_of_one_size(sides: list[int], batch_size: int) -> None:
    items = [
        corpus_worker._Decoded(place, CorpusItem(str(place)), Image.new("RGB", (side, side)))
        for place, side in enumerate(sides)
    ]
    batches = list(size_batches(items, batch_size))
    assert sorted(item.place for batch in batches for item in batch) == [*range(len(sides))]
    assert all(len(batch) <= batch_size for batch in batches)
    assert all(len({item.image.size for item in batch if item.image}) == 1 for batch in batches)


def test_reading_ahead_keeps_order_and_errors() -> None:
    assert list(ahead(iter(range(50)))) == [*range(50)]

    def broken() -> Any:
        yield 1
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        list(ahead(broken()))


def test_a_second_run_computes_only_what_changed(
    images: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_images(tmp_path / "images", 12)
    first = ground_here(str(folder), tmp_path / "out", model)
    assert first["computed"] == 12
    with monkeypatch.context() as patched:
        patched.setattr(corpus_worker, "load", lambda *_, **__: pytest.fail("computed again"))
        again = ground_here(str(folder), tmp_path / "out", model)
    assert again == {**first, "computed": 0}
    changed = folder / "a" / "00001.png"
    changed.write_bytes(image_bytes(99))
    new = folder / "a" / "00000.png"
    new.write_bytes(image_bytes(98))
    new.with_suffix(".txt").write_text("a dog")
    third = ground_here(str(folder), tmp_path / "out", model)
    assert 2 <= third["computed"] < 12
    assert shard_rows(tmp_path / "out") == single_process_rows(model, folder)
    other = ground_here(str(folder), tmp_path / "out", model, threshold=0.4)
    assert other["computed"] == 13


def test_damaged_images_are_rows_of_the_errors(model: str, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 6)
    damaged = {"cut": image_bytes(1)[:200], "empty": b"", "text": b"not an image", "bomb": bomb()}
    for name, content in damaged.items():
        (folder / f"{name}.png").write_bytes(content)
        (folder / f"{name}.txt").write_text("a dog")
    (folder / "alone.png").write_bytes(image_bytes(2))
    (folder / "silent.png").write_bytes(image_bytes(3))
    (folder / "silent.txt").write_text("")
    ground_here(str(folder), tmp_path / "out", model)
    errors = pd.read_parquet(tmp_path / "out" / "errors.parquet").set_index("image")["error"]
    sentences = {Path(name).stem: text for name, text in errors.items()}
    assert set(sentences) == {*damaged, "alone", "silent"}
    assert "cut short" in sentences["cut"] and "150,000,000" in sentences["bomb"]
    assert "not an image" in sentences["empty"] and "not an image" in sentences["text"]
    assert "alone.txt is missing" in sentences["alone"]
    assert len({row["image"] for row in shard_rows(tmp_path / "out")}) == 6


def test_pandas_duckdb_and_coco_read_the_results(images: Path, model: str, tmp_path: Path) -> None:
    ground_here(str(images), tmp_path / "out", model)
    table = pd.read_parquet(tmp_path / "out" / "shards")
    query = f"select count(*), count(distinct image), max(rle.size[1]) from '{tmp_path}/out/shards/*.parquet'"
    (found,) = duckdb.sql(query).fetchall()
    assert found[:2] == (len(table), 12) and table["image"].nunique() == 12
    assert set(table["model"]) == {"model"} and table["model_sha256"].str.len().eq(64).all()
    write_coco(ResultFolder(str(tmp_path / "out")), tmp_path / "coco.json")
    coco = json.loads((tmp_path / "coco.json").read_text())
    assert len(coco["images"]) == 12 and len(coco["annotations"]) == len(table)
    assert {a["image_id"] for a in coco["annotations"]} == {i["id"] for i in coco["images"]}
    assert {a["category_id"] for a in coco["annotations"]} == {c["id"] for c in coco["categories"]}


def test_all_sources_hold_the_same(images: Path, tmp_path: Path) -> None:
    files = sorted(images.rglob("*.png"), key=lambda file: file.name)
    captions = [caption_of(number) for number in range(12)]
    rows = [{"image": str(f), "caption": c} for f, c in zip(files, captions, strict=True)]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sources = [
        str(images),
        images.as_uri(),
        str(tmp_path / "list.jsonl"),
        str(parquet_of(tmp_path / "paths.parquet", image=list(map(str, files)), caption=captions)),
        str(parquet_of(tmp_path / "b.parquet", bytes=[f.read_bytes() for f in files], caption=captions)),
        str(write_tar(tmp_path / "shard.tar", 12)),
        write_tar(tmp_path / "other.tar", 12).as_uri(),
    ]
    expected = sorted((f.read_bytes(), c) for f, c in zip(files, captions, strict=True))
    for source in sources:
        items = [item for chunk in CorpusSource(source, shard_size=4).chunks() for item in read_chunk(chunk)]
        assert sorted((item.content, item.caption) for item in items) == expected, source
        assert not any(item.problem for item in items)
        assert len({item.name for item in items}) == 12


def test_sources_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"zz")
    parquet_of(tmp_path / "none.parquet", caption=["a dog"])
    (tmp_path / "mixed").mkdir()
    parquet_of(tmp_path / "mixed" / "list.parquet", image=["a.png"], caption=["a dog"])
    (tmp_path / "mixed" / "a.png").write_bytes(image_bytes(1))
    for source, word in (
        (str(tmp_path / "mixed"), "images and Parquet files"),
        (str(tmp_path / "nowhere"), "neither a file nor a folder"),
        (str(tmp_path / "empty"), "holds no image"),
        (str(tmp_path / "bad.parquet"), "not a Parquet file"),
        (str(tmp_path / "none.parquet"), "no column of images"),
        ("nothing://there", "cannot be opened"),
    ):
        with pytest.raises(InputError, match=word):
            list(CorpusSource(source).chunks())


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system refuse to write more than `size` bytes to a file, as a full disk does."""
    resource = pytest.importorskip("resource")
    old, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)


def test_a_full_disk_leaves_complete_shards(images: Path, model: str, tmp_path: Path) -> None:
    results = ResultFolder(str(tmp_path / "out"))
    results.prepare()
    chunks = list(CorpusSource(str(images), shard_size=4).chunks())
    worker = ChunkWorker(CorpusSettings.of(model), str(tmp_path / "out"), "cpu")
    assert len(chunks) > 1 and not worker(asdict(chunks[0]))["fault"]

    with largest_file(1000):
        fault = worker(asdict(chunks[1]))["fault"]
    assert "cannot be written (File too large)" in fault and "complete" in fault
    assert [file.name for file in (tmp_path / "out" / "shards").iterdir()] == [f"{chunks[0].name}.parquet"]
    assert len(pd.read_parquet(tmp_path / "out" / "shards")) > 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_tells_the_rate_and_failures_as_they_happen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    seen: list[tuple[str, str]] = []

    def reports() -> Iterator[dict[str, Any]]:
        same = {"fault": "", "computed": True}
        yield {"images": 30, "phrases": 90, "errors": 2, "failures": "a.png is empty\nb.png is cut", **same}
        seen.append((terminal.getvalue(), caplog.text))
        yield {"images": 32, "phrases": 70, "errors": 0, "failures": "", **same}

    counts = corpus_run._follow(reports(), 64)
    assert (counts["grounded"], counts["failed"], counts["phrases"]) == (62, 2, 160)
    (first,) = seen
    assert "32/64" in first[0] and "rows/s, 2 failed" in first[0]
    assert "a.png is empty" in first[1] and "b.png is cut" in first[1]
    assert "64/64" in terminal.getvalue()


def test_the_python_function_has_the_name_that_is_documented() -> None:
    pytest.importorskip("ray")
    import ppmn.grounding

    assert ppmn.grounding.corpus is corpus_run.corpus
    with pytest.raises(InputError, match="the batch size is 0"):
        ppmn.grounding.corpus("photos", "out", batch_size=0)


def test_without_ray_a_sentence_names_the_extra(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **options: Any) -> Any:
        if name == "ray" or name.startswith("ray."):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main(["ground", str(images), "-o", str(tmp_path / "out"), "--engine", "ray"]) == 2
    assert "pip install 'ppmn[ray]'" in capsys.readouterr().err


def test_unwritable_folders_and_options_are_refused(
    images: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    (tmp_path / "file").write_text("")
    command = ["ground", str(images), "--model", model]
    for more, word in (
        (["--engine", "ray", "-o", str(tmp_path / "file" / "out")], "cannot be made"),
        (["--engine", "ray"], "-o DIR"),
        (["--engine", "ray", "-o", str(tmp_path / "out"), "--boxes"], "--boxes"),
        (["--engine", "ray", "-o", str(tmp_path / "out"), "--json", "-"], "it cannot be -"),
        (["--engine", "ray", "-o", str(tmp_path / "out"), "--instances"], "--instances"),
        (["--engine", "ray", "-o", str(tmp_path / "out"), "--threads", "0"], "threads is 0"),
        (["--engine", "ray", "-o", str(tmp_path / "out"), "--threshold", "2"], "between 0 and 1"),
        (["-o", str(tmp_path / "out"), "--address", "auto"], "--address is an option of --engine ray"),
        (["-o", str(tmp_path / "out"), "--shard-size", "8"], "--shard-size is an option of --engine ray"),
        (["--engine", "ray", "-o", str(tmp_path / "out"), "--shard-size", "0"], "the shard size is 0"),
        (["--engine", "ray", "-o", str(tmp_path / "out"), "--batch-size", "0"], "the batch size is 0"),
    ):
        assert main([*command, *more]) == 2
        assert word in capsys.readouterr().err


def test_an_address_that_does_not_answer(
    images: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    command = ["ground", str(images), "--model", model, "-o", str(tmp_path / "out"), "--engine", "ray"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    for address, word in ((nobody, "no Ray cluster answers at"), ("nowhere", "must be auto or HOST:PORT")):
        assert main([*command, "--address", address]) == 2
        assert word in capsys.readouterr().err


def test_an_address_that_accepts_and_says_nothing(images: Path, model: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "ppmn.cli", "ground", str(images), "--model", model, "--engine", "ray"]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        command += ["-o", str(tmp_path / "out"), "--address", address]
        ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    sentence = f"ppmn: no Ray cluster answers at {address}"
    assert any(line.startswith(sentence) for line in ended.stderr.splitlines())  # Ray reports its attempts
