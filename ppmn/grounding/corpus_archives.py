"""Images in other files: Parquet files with paths or with the images themselves, and WebDataset tar files."""

import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ppmn.errors import InputError
from ppmn.grounding.corpus_items import (
    Chunk,
    CorpusItem,
    beside,
    digest,
    open_location,
    read_listed,
    reason_of,
)
from ppmn.images import IMAGE_SUFFIXES

_IMAGE_COLUMNS = ("image", "path", "url", "bytes")
_ROWS = 16  # of a Parquet file with images that are in memory at a time


def parquet_rows(
    system: fs.FileSystem, file: str, location: str, caption: str | None
) -> Iterator[dict[str, Any]]:
    """The images that a Parquet file names; none if it holds the images themselves."""
    with _opened(system, file, location) as table:
        column = _image_column(table, location)
        if not _holds_names(table, column):
            return
        wanted = [name for name in (column, "caption", "spans") if name in table.schema_arrow.names]
        folder = location.rpartition("/")[0]
        for number, row in enumerate(_rows(table, wanted, location), 1):
            name = f"{location}:{number}"
            text = row.get("caption") if caption is None else caption
            problem = None if isinstance(text, str) else f"there is no caption: {name} has none"
            problem = problem if row[column] else f"{name} has no image"
            image = beside(folder, row[column]) if row[column] else name
            text = text if isinstance(text, str) else ""
            yield {"image": image, "caption": text, "spans": row.get("spans"), "problem": problem}


def _rows(table: pq.ParquetFile, columns: list[str], location: str) -> Iterator[dict[str, Any]]:
    try:
        for batch in table.iter_batches(columns=columns):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{location} is damaged ({reason_of(error)})") from error


def parquet_chunks(system: fs.FileSystem, file: str, location: str) -> Iterator[Chunk]:
    """The row groups of a Parquet file that holds images; none if it names them."""
    with _opened(system, file, location) as table:
        column = _image_column(table, location)
        count = 0 if _holds_names(table, column) else table.num_row_groups
        groups = [group for group in range(count) if table.metadata.row_group(group).num_rows]
    for group in groups:
        place = json.dumps({"file": location, "column": column, "group": group})
        yield Chunk(digest(place), "parquet", place)


def parquet_items(place: dict[str, Any], caption: str | None) -> Iterator[CorpusItem]:
    """The images of a row group."""
    location, group = place["file"], place["group"]
    system, path = open_location(location)
    number = 0
    try:
        with _opened(system, path, location) as table:
            for batch in table.iter_batches(_ROWS, row_groups=[group]):
                for row in batch.to_pylist():
                    yield _parquet_item(row, place, number, caption)
                    number += 1
    except (InputError, OSError, pa.ArrowException) as error:
        name = f"{location}:{group}:{number}"
        yield CorpusItem(name, problem=f"{name} and what follows is damaged ({reason_of(error)})")


def _opened(system: fs.FileSystem, file: str, location: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(system.open_input_file(file))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{location} is not a Parquet file ({reason_of(error)})") from error


def _image_column(table: pq.ParquetFile, location: str) -> str:
    column = next((name for name in _IMAGE_COLUMNS if name in table.schema_arrow.names), None)
    if column is None:
        raise InputError(f"{location} has no column of images ({', '.join(_IMAGE_COLUMNS)})")
    return column


def _holds_names(table: pq.ParquetFile, column: str) -> bool:
    kind = table.schema_arrow.field(column).type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _parquet_item(row: dict[str, Any], place: dict[str, Any], number: int, caption: str | None) -> CorpusItem:
    image, text = row[place["column"]], row.get("caption") if caption is None else caption
    name = row["name"] if isinstance(row.get("name"), str) else f"{place['file']}:{place['group']}:{number}"
    if isinstance(image, dict):  # as Hugging Face's data sets store it
        if image.get("bytes") is None and isinstance(image.get("path"), str):
            listed = {"image": beside(place["file"].rpartition("/")[0], image["path"]), "caption": text}
            return read_listed({**listed, "spans": row.get("spans")})
        image = image.get("bytes")
    if not isinstance(image, bytes):
        return CorpusItem(name, problem=f"{name} has no image")
    return CorpusItem.of(name, text, image, row.get("spans"))


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
                key, suffix = _key(member.name)
                if sample and key != current:
                    yield _tar_item(location, current, sample, caption)
                    sample = {}
                current = key
                sample[suffix] = content.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        problem = f"{location} is damaged or cut short after {current or 'its start'} ({reason_of(error)})"
        yield CorpusItem(location, problem=problem)
    if sample:
        yield _tar_item(location, current, sample, caption)


def _key(member: str) -> tuple[str, str]:
    """What the files of a sample share, and the suffix: all from the first dot of the name on."""
    folder, slash, file = member.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", f".{suffix.lower()}"


def _tar_item(location: str, key: str, sample: dict[str, bytes], caption: str | None) -> CorpusItem:
    suffix = next((suffix for suffix in sample if suffix in IMAGE_SUFFIXES), None)
    name = f"{location}:{key}{suffix or ''}"
    if suffix is None:
        return CorpusItem(name, problem=f"{name} has no image ({', '.join(IMAGE_SUFFIXES)})")
    row: Any = {}
    if ".json" in sample:
        try:
            row = json.loads(sample[".json"])
        except ValueError as error:
            return CorpusItem(name, problem=f"{location}:{key}.json is not JSON ({error})")
        if not isinstance(row, dict):
            return CorpusItem(name, problem=f"{location}:{key}.json is not an object with a caption")
    text = row.get("caption") if caption is None else caption
    if caption is None and ".txt" in sample:
        text = sample[".txt"].decode(errors="replace").strip()
    return CorpusItem.of(name, text, sample[suffix], row.get("spans"))
