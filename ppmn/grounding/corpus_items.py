"""The images of a corpus with their captions, one at a time, and where they are."""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

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

    @classmethod
    def of(cls, name: str, caption: Any, content: bytes, spans: Any) -> "CorpusItem":
        """An item of values that were read from a file, and may be anything."""
        if not isinstance(caption, str):
            return cls(name, problem=f"there is no caption: {name} has none")
        try:
            pairs = None if spans is None else [(int(start), int(end)) for start, end in spans]
        except (TypeError, ValueError):
            return cls(name, caption, problem=f"{name} has spans that are not pairs of numbers")
        return cls(name, caption, content, pairs)


@dataclass(frozen=True)
class Chunk:
    """Some images of a corpus.

    Attributes:
        name: The name of its shard: a hash of what is in the chunk.
        kind: "list", "parquet" or "tar".
        place: A JSON list of images, a row group of a Parquet file, or a tar file.
    """

    name: str
    kind: str
    place: str


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URL, and the path on it; protocols unknown to Arrow are fsspec's."""
    protocol, separator, rest = location.rstrip("/").partition("://")
    if not separator:
        return fs.LocalFileSystem(), Path(location).expanduser().absolute().as_posix()
    if protocol == "file":
        return fs.LocalFileSystem(), Path(url2pathname(rest)).as_posix()
    host, _, path = rest.partition("/")
    system, root = _open_root(f"{protocol}://{host}")
    return system, f"{root.removesuffix('/')}/{path}" if path else root


@lru_cache(maxsize=64)
def _open_root(url: str) -> tuple[fs.FileSystem, str]:
    """The file system of a bucket or host, opened once: it may have to ask where the bucket is."""
    try:
        system, root = fs.FileSystem.from_uri(url)
        return system, root
    except (pa.ArrowException, ValueError, OSError):
        pass
    try:
        import fsspec

        system, root = fsspec.core.url_to_fs(url)
        return fs.PyFileSystem(fs.FSSpecHandler(system)), root
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"{url} cannot be opened ({error})") from error


def digest(*parts: str) -> str:
    """A name for what the parts say."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def beside(folder: str, name: str) -> str:
    """The place of a file that a list or table in `folder` names."""
    return name if "://" in name or Path(name).is_absolute() else f"{folder}/{name}"


def read_listed(row: dict[str, Any]) -> CorpusItem:
    """An image of a list, read; the caption may be in a file of its own."""
    name, caption = row["image"], row.get("caption")
    if problem := row.get("problem"):
        return CorpusItem(name, caption or "", problem=problem)
    try:
        if "caption_file" in row:
            caption = _read_bytes(row["caption_file"]).decode(errors="replace").strip()
        return CorpusItem.of(name, caption, _read_bytes(name), row.get("spans"))
    except Exception as error:  # each protocol raises errors of its own
        return CorpusItem(name, caption or "", problem=f"{name} cannot be read ({reason_of(error)})")


def _read_bytes(location: str) -> bytes:
    system, path = open_location(location)
    with system.open_input_stream(path) as stream:
        content: bytes = stream.read()
    return content


def reason_of(error: BaseException) -> str:
    """The first sentence of what a file system says."""
    text = getattr(error, "strerror", None) or str(error).partition(". Detail")[0]
    return " ".join(text.split()) or type(error).__name__
