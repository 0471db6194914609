"""The images of a corpus with their captions, one at a time, and where they are."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from ppmn.errors import InputError
from ppmn.types import Span


@dataclass(frozen=True)
class CorpusItem:
    """One image with its caption.

    Attributes:
        name: The file or URL of the image, or its place in a shard.
        caption: Its caption.
        content: The bytes of the image's file.
        spans: Start and end of each phrase; None finds the noun phrases.
        problem: A sentence, if there is no image or no caption.
    """

    name: str
    caption: str = ""
    content: bytes = field(default=b"", repr=False)
    spans: list[Span] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Some images of a corpus.

    Attributes:
        name: The name of its shard: a hash of what is in the chunk.
        kind: "list", "parquet" or "tar".
        place: A JSON list of images, or the file with the first and last row of a Parquet file.
        images: How many, where that is known.
    """

    name: str
    kind: str
    place: str
    images: int | None = None


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URL, and the path on it; protocols unknown to Arrow are fsspec's."""
    if "://" not in location:
        return fs.LocalFileSystem(), str(Path(location).expanduser().resolve())
    try:
        return fs.FileSystem.from_uri(location)
    except (pa.ArrowException, ValueError, OSError):
        pass
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(location)
        return fs.PyFileSystem(fs.FSSpecHandler(system)), path
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"{location} cannot be opened ({error})") from error


def digest(*parts: str) -> str:
    """A name for what the parts say."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def read_bytes(system: fs.FileSystem, path: str) -> bytes:
    """A whole file."""
    with system.open_input_stream(path) as stream:
        content: bytes = stream.read()
    return content


def read_listed(row: dict[str, Any]) -> CorpusItem:
    """An image of a list, read."""
    name, caption, problem = row["image"], row["caption"] or "", row["problem"]
    spans = None if row["spans"] is None else [(int(start), int(end)) for start, end in row["spans"]]
    if problem is not None:
        return CorpusItem(name, caption, problem=problem)
    try:
        if "caption_file" in row:
            caption = read_bytes(*open_location(row["caption_file"])).decode(errors="replace").strip()
        return CorpusItem(name, caption, read_bytes(*open_location(name)), spans)
    except OSError as error:
        reason = error.strerror or str(error).partition(". Detail")[0]
        return CorpusItem(name, caption, problem=f"{name} cannot be read ({reason})")
