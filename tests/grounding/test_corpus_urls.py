"""Corpora at URLs: S3, served by moto on this machine, and a file system of fsspec."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from support.corpus import (
    COMPARED,
    caption_of,
    ground_here,
    image_bytes,
    parquet_of,
    random_model,
    single_process_rows,
    write_images,
    write_tar,
)

from ppmn.errors import InputError
from ppmn.grounding.corpus_items import _open_root
from ppmn.grounding.corpus_shards import ResultFolder
from ppmn.grounding.corpus_sources import CorpusSource, read_chunk

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[fs.FileSystem]:
    """An empty bucket called photos."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    for name, value in (
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    _open_root.cache_clear()
    system = fs.S3FileSystem(allow_bucket_creation=True, endpoint_override=url, request_timeout=120)
    system.create_dir("photos")
    yield system
    _open_root.cache_clear()
    server.stop()


def test_a_bucket_is_read_and_written(bucket: fs.FileSystem, tmp_path: Path) -> None:
    model, count = random_model(tmp_path), 6
    folder = write_images(tmp_path / "images", count)
    (folder / "a" / "00001.png").rename(folder / "a" / "photo 1+é%20#.png")  # names need no quoting
    (folder / "a" / "00001.txt").rename(folder / "a" / "photo 1+é%20#.txt")
    fs.copy_files(str(folder), "photos/in", destination_filesystem=bucket)
    found = ground_here("s3://photos/in/", "s3://photos/in/out", model)
    again = ground_here("s3://photos/in", "s3://photos/in/out", model)  # results in the corpus are not images
    assert (found["images"], found["computed"], again["computed"]) == (count, count, 0)
    rows = list(ResultFolder("s3://photos/in/out").rows("shards", list(COMPARED)))
    for row in rows:
        row["image"] = row["image"].replace("s3://photos/in", folder.as_posix())
    assert sorted(rows, key=lambda row: row["image"]) == single_process_rows(model, folder)
    with bucket.open_input_file("photos/in/out/_SUCCESS") as stream:
        assert json.loads(stream.read())["shards"] > 1
    with bucket.open_input_file("photos/in/out/errors.parquet") as stream:
        assert len(pq.read_table(stream)) == 0


def test_lists_and_archives_in_a_bucket(bucket: fs.FileSystem, tmp_path: Path) -> None:
    count = 3
    folder, contents = tmp_path / "in", [image_bytes(n) for n in range(count)]
    captions = [caption_of(n) for n in range(count)]
    (folder / "images").mkdir(parents=True)
    for number, content in enumerate(contents):
        (folder / "images" / f"{number}.png").write_bytes(content)
    names = [f"images/{n}.png" for n in range(count)]
    rows = [{"image": name, "caption": text} for name, text in zip(names, captions, strict=True)]
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet_of(folder / "names.parquet", image=names, caption=captions)
    parquet_of(folder / "bytes.parquet", bytes=contents, caption=captions)
    write_tar(folder / "samples.tar", count)
    fs.copy_files(str(folder), "photos/several", destination_filesystem=bucket)
    for file in ("list.jsonl", "names.parquet", "bytes.parquet", "samples.tar"):
        chunks = CorpusSource(f"s3://photos/several/{file}").chunks()
        items = [item for chunk in chunks for item in read_chunk(chunk)]
        assert [(item.caption, item.content) for item in items] == list(zip(captions, contents, strict=True))
        assert all(item.problem is None and item.name.startswith("s3://photos/several/") for item in items)


@pytest.mark.skipif(sys.platform != "linux", reason="Ray's other tests run on Linux only")
def test_the_engine_reads_and_writes_a_bucket(bucket: fs.FileSystem, tmp_path: Path) -> None:
    """With Ray in processes of its own, which know of the bucket from the environment."""
    pytest.importorskip("ray")
    model, folder = random_model(tmp_path), write_images(tmp_path / "images", 8)
    fs.copy_files(str(folder), "photos/engine", destination_filesystem=bucket)
    command = [sys.executable, "-m", "ppmn.cli", "ground", "s3://photos/engine", "-o", "s3://photos/answers"]
    command += ["--model", model, "--engine", "ray", "--actors", "1", "--device", "cpu"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = list(ResultFolder("s3://photos/answers").rows("shards", list(COMPARED)))
    for row in rows:
        row["image"] = row["image"].replace("s3://photos/engine", folder.as_posix())
    assert sorted(rows, key=lambda row: row["image"]) == single_process_rows(model, folder)


def test_a_bucket_that_is_missing(bucket: fs.FileSystem) -> None:
    with pytest.raises(InputError, match="s3://nowhere/in"):
        CorpusSource("s3://nowhere/in")
    with pytest.raises(InputError, match="s3://nowhere/out/_started cannot be written"):
        ResultFolder("s3://nowhere/out").prepare()


def test_a_file_system_of_fsspec() -> None:
    system = fsspec.filesystem("memory")
    for number in range(3):
        system.pipe(f"/corpus/{number}.png", image_bytes(number))
        system.pipe(f"/corpus/{number}.txt", caption_of(number).encode())
    lines = [json.dumps({"image": f"{n}.png", "caption": caption_of(n)}) for n in range(3)]
    system.pipe("/corpus/list.jsonl", "\n".join(lines).encode())
    expected = [(f"memory://corpus/{n}.png", caption_of(n), image_bytes(n), None) for n in range(3)]
    for source in ("memory://corpus", "memory://corpus/list.jsonl"):
        items = [item for chunk in CorpusSource(source).chunks() for item in read_chunk(chunk)]
        assert [(item.name, item.caption, item.content, item.problem) for item in items] == expected
