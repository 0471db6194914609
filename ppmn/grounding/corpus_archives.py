"""Images inside of other files: Parquet files with paths or bytes, and WebDataset tar files."""

import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ppmn.errors import InputError
from ppmn.grounding.corpus_items import Chunk, CorpusItem, digest, open_location, read_listed
from ppmn.images import IMAGE_SUFFIXES

_IMAGE_COLUMNS = ("image", "path", "url", "bytes")
_ROWS = 16  # of a Parquet file that are in memory at a time


def parquet_chunks(system: fs.FileSystem, file: str, location: str, chunk_size: int) -> Iterator[Chunk]:
    try:
        with system.open_input_file(file) as stream:
            table = pq.ParquetFile(stream)
            names = table.schema_arrow.names
            sizes = [table.metadata.row_group(g).num_rows for g in range(table.num_row_groups)]
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{location} is not a Parquet file ({error})") from error
    column = next((name for name in _IMAGE_COLUMNS if name in names), None)
    if column is None:
        raise InputError(f"{location} has no column of images ({', '.join(_IMAGE_COLUMNS)})")
    for group, size in enumerate(sizes):
        for first in range(0, size, chunk_size):
            last = min(first + chunk_size, size)
            place = {"file": location, "column": column, "group": group, "first": first, "last": last}
            text = json.dumps(place)
            yield Chunk(digest(text), "parquet", text, last - first)


def parquet_items(place: dict[str, Any], caption: str | None) -> Iterator[CorpusItem]:
    location = place["file"]
    system, path = open_location(location)
    number = 0
    with system.open_input_file(path) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(_ROWS, row_groups=[place["group"]]):
            first, last = (min(max(place[end] - number, 0), len(batch)) for end in ("first", "last"))
            for offset, row in enumerate(batch.slice(first, last - first).to_pylist(), number + first):
                yield _parquet_item(row, f"{location}:{place['group']}:{offset}", place["column"], caption)
            number += len(batch)
            if number >= place["last"]:
                return


def _parquet_item(row: dict[str, Any], name: str, column: str, caption: str | None) -> CorpusItem:
    image = row[column]
    if isinstance(image, dict):  # as Hugging Face's data sets store it
        name, image = image.get("path") or name, image.get("bytes") or image.get("path")
    text = row.get("caption") if caption is None else caption
    spans = row.get("spans")
    if not isinstance(text, str):
        return CorpusItem(name, problem=f"there is no caption: {name} has none")
    if isinstance(image, str):
        return read_listed({"image": image, "caption": text, "spans": spans, "problem": None})
    if not isinstance(image, bytes):
        return CorpusItem(name, text, problem=f"{name} has no image")
    named = row.get("name")
    pairs = None if spans is None else [(int(start), int(end)) for start, end in spans]
    return CorpusItem(named if isinstance(named, str) else name, text, image, pairs)


def tar_items(location: str, caption: str | None) -> Iterator[CorpusItem]:
    """The samples of a WebDataset shard: files beside each other of one name, an image and .txt or .json."""
    system, path = open_location(location)
    sample: dict[str, bytes] = {}
    current = ""
    try:
        with system.open_input_stream(path) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content is None:
                    continue
                folder, _, file = member.name.rpartition("/")
                stem, _, suffix = file.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if sample and key != current:
                    yield _tar_item(location, current, sample, caption)
                    sample = {}
                current = key
                sample[f".{suffix.lower()}"] = content.read()
    except (tarfile.TarError, OSError) as error:
        yield CorpusItem(location, problem=f"{location} is damaged or cut short ({error})")
    if sample:
        yield _tar_item(location, current, sample, caption)


def _tar_item(location: str, key: str, sample: dict[str, bytes], caption: str | None) -> CorpusItem:
    suffix = next((suffix for suffix in sample if suffix in IMAGE_SUFFIXES), None)
    name = f"{location}:{key}{suffix or ''}"
    if suffix is None:
        return CorpusItem(name, problem=f"{name} has no image ({', '.join(IMAGE_SUFFIXES)})")
    text, spans = caption, None
    if text is None and ".txt" in sample:
        text = sample[".txt"].decode(errors="replace").strip()
    if ".json" in sample:
        try:
            row = json.loads(sample[".json"])
            text, spans = row.get("caption") if text is None else text, row.get("spans")
        except (ValueError, AttributeError):
            pass
    if not isinstance(text, str):
        return CorpusItem(name, problem=f"there is no caption: {key} has neither .txt nor .json with one")
    return CorpusItem(name, text, sample[suffix], None if spans is None else [(a, b) for a, b in spans])
