"""Corpora whose listing is empty, damaged or not complete; finished shards are never lost by it."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.corpus import caption_of, image_bytes, parquet_of, random_model, shard_rows, write_images

from ppmn.errors import InputError
from ppmn.grounding import corpus_run, corpus_sources
from ppmn.grounding.corpus_items import CorpusItem
from ppmn.grounding.corpus_run import corpus
from ppmn.grounding.corpus_shards import ResultFolder
from ppmn.grounding.corpus_sources import CorpusSource, read_chunk
from ppmn.grounding.corpus_worker import ChunkWorker, CorpusSettings, _Decoded


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def without_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """`corpus` grounds in this process, without actors."""
    pytest.importorskip("ray")

    def ground(
        images: CorpusSource, results: ResultFolder, settings: CorpusSettings, pool: Any, names: set[str]
    ) -> Counter[str]:
        worker = ChunkWorker(settings, results.location, "cpu", 1)
        chunks = corpus_run._named(images.chunks(), names)
        return corpus_run._follow([worker(asdict(chunk)) for chunk in chunks], images.images)

    monkeypatch.setattr(corpus_run, "_ground", ground)


def shards(out: Path) -> set[str]:
    return {file.name for file in (out / "shards").iterdir()}


class Unreadable:
    """A file system, one folder of which cannot be listed."""

    def __init__(self, system: Any, folder: Path) -> None:
        self.system, self.folder = system, str(folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.system, name)

    def get_file_info(self, wanted: Any) -> Any:
        if getattr(wanted, "base_dir", None) == self.folder:
            raise PermissionError(13, "Permission denied")
        return self.system.get_file_info(wanted)


@pytest.mark.usefixtures("without_pool")
def test_shards_of_a_folder_that_cannot_be_read_are_kept(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    images, out = write_images(tmp_path / "images", 6), tmp_path / "out"
    corpus(images, out, model=model, shard_size=2)
    before = shards(out)
    assert (out / "_SUCCESS").is_file()
    opened = corpus_sources.open_location

    def open_unreadable(location: str) -> tuple[Any, str]:
        system, path = opened(location)
        return Unreadable(system, images / "b"), path

    with monkeypatch.context() as patched:
        patched.setattr(corpus_sources, "open_location", open_unreadable)
        corpus(images, out, model=model, shard_size=2)
    assert before <= shards(out) and not (out / "_SUCCESS").exists()
    assert caplog.text.count("images/b cannot be read (Permission denied)") == 1
    assert "that could not be read: 1;" in caplog.text and "all shards are kept" in caplog.text
    corpus(images, out, model=model, shard_size=2)
    assert shards(out) == before and (out / "_SUCCESS").is_file()


@pytest.mark.usefixtures("without_pool")
@pytest.mark.parametrize("kind", ["list", "table"])
def test_a_source_without_an_image_removes_nothing(model: str, tmp_path: Path, kind: str) -> None:
    file, out = tmp_path / ("list.jsonl" if kind == "list" else "table.parquet"), tmp_path / "out"
    (tmp_path / "a.png").write_bytes(image_bytes(1))
    row = {"image": "a.png", "caption": caption_of(1)}
    table = pa.Table.from_pylist([row])
    if kind == "list":
        file.write_text(json.dumps(row))
    else:
        pq.write_table(table, file)
    corpus(file, out, model=model)
    before = shard_rows(out)
    file.write_bytes(b"\n")
    if kind == "table":
        pq.write_table(table.slice(1), file)
    with pytest.raises(InputError, match=f"{file.name} holds no image"):
        corpus(file, out, model=model)
    assert before and shard_rows(out) == before


def test_parquet_without_rows_of_images_holds_no_image(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"bytes": image_bytes(1), "caption": "a dog"}])
    with pq.ParquetWriter(tmp_path / "empty.parquet", table.schema) as writer:
        writer.write_table(table.slice(1))
    with pytest.raises(InputError, match=r"empty\.parquet holds no image"):
        list(CorpusSource(str(tmp_path / "empty.parquet")).chunks())


def test_captions_of_a_table_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image_bytes(1))
    for number, caption in enumerate((b"a dog", 3, None)):
        file = parquet_of(tmp_path / f"{number}.parquet", image=["a.png"], caption=[caption])
        (chunk,) = CorpusSource(str(file)).chunks()
        (item,) = read_chunk(chunk)
        assert item.problem == f"there is no caption: {file}:1 has none"


def test_a_damaged_table_is_one_sentence(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(500)]
    file = parquet_of(tmp_path / "table.parquet", image=names, caption=["a dog"] * 500)
    content = bytearray(file.read_bytes())
    content[4:600] = bytes(596)  # the first pages
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"table\.parquet is damaged"):
        list(CorpusSource(str(file)).chunks())


def test_rows_of_a_batch_that_fails_are_not_doubled(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ChunkWorker(CorpusSettings.of(model, batch_size=2), str(tmp_path), "cpu", 1)
    worker.grounder = worker.settings.load("cpu", 1)
    image = Image.new("RGB", (64, 64))
    batch = [_Decoded(place, CorpusItem(f"{place}.png", "a dog"), image) for place in range(2)]
    rows = worker._rows

    def fail_once(item: CorpusItem, grounding: Any) -> list[dict]:
        if item.name == "1.png":
            monkeypatch.setattr(worker, "_rows", rows)
            raise MemoryError
        return rows(item, grounding)

    monkeypatch.setattr(worker, "_rows", fail_once)
    answers = list(worker._answer(batch))
    assert [place for place, _ in answers] == [0, 1]
    assert all(isinstance(found, list) for _, found in answers)
