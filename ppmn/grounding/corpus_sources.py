"""What a corpus holds: a folder, a JSONL list, Parquet or WebDataset files, on disk or at a URL, in chunks.

A chunk is the unit of work, and a shard of the results. In a folder or a list a chunk ends where the hash of
an image's name says so: a file that is added or removed changes the chunk that it is in, and no other.
Nothing holds the whole list: chunks are made while the earlier ones are worked on.
"""

import io
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from pyarrow import fs

from ppmn.errors import InputError
from ppmn.grounding.batch import read_list_line
from ppmn.grounding.corpus_archives import parquet_chunks, parquet_items, parquet_rows, tar_items
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

_log = logging.getLogger(__name__)
_TARS = (".tar", ".tar.gz", ".tgz")
_KINDS = {"image": "images", "parquet": "Parquet files", "tar": "tar files"}


class CorpusSource:
    """A corpus that can be read; making one refuses what cannot.

    Args:
        location: A folder, a JSONL list, a Parquet file or a tar file, or a folder of one of the last two; a
            path or a URL.
        caption: One caption for all images, in place of their own.
        leave_out: A folder, path or URL, inside `location` that is not read.
        shard_size: Images per chunk, about; a tar file and a row group of images in Parquet are one chunk.

    Attributes:
        images: How many images there are, where that is known before they are read.
        unread: Folders inside `location` that could not be read.

    Raises:
        InputError: The source cannot be read, or holds no image or several kinds of files.
    """

    def __init__(
        self,
        location: str,
        *,
        caption: str | None = None,
        leave_out: str | None = None,
        shard_size: int = 32,
    ) -> None:
        if shard_size < 1:
            raise InputError(f"the shard size is {shard_size}; it must be 1 or more")
        self.caption, self.shard_size = caption, shard_size
        self.system, self.path = open_location(location)
        self.local = isinstance(self.system, fs.LocalFileSystem)
        self.location = self.path if self.local else location.rstrip("/")
        self.leave_out = open_location(leave_out)[1] if leave_out else None
        self.is_file = self._type() == fs.FileType.File
        up = "/" if self.is_file else None  # a file's neighbours are found from its folder
        self.unread: set[str] = set()
        self._root_path = self.path.rpartition(up)[0] if up else self.path.rstrip("/")
        self._root_url = self.location.rpartition(up)[0] if up else self.location.rstrip("/")
        self.kind, self.images = self._look()

    def chunks(self) -> Iterator[Chunk]:
        """The chunks in a stable order, each of a name of its own."""
        names: set[str] = set()
        for chunk in self._chunks():
            name = chunk.name
            while name in names:  # the same images listed again are grounded again
                name = digest(name)
            names.add(name)
            yield Chunk(name, chunk.kind, chunk.place)
        if not names:
            raise InputError(f"{self.location} holds no image")

    def _chunks(self) -> Iterator[Chunk]:
        if self.kind == "list":
            yield from list_chunks(self._lines(), self.shard_size)
        elif self.kind == "image":
            yield from list_chunks(self._image_rows(), self.shard_size)
        elif self.kind == "tar":
            yield from (Chunk(digest(self._url(file)), "tar", self._url(file)) for file in self._files("tar"))
        else:
            for file in self._files("parquet"):
                rows = parquet_rows(self.system, file, self._url(file), self.caption)
                yield from list_chunks(rows, self.shard_size)
                yield from parquet_chunks(self.system, file, self._url(file))

    def _look(self) -> tuple[str, int | None]:
        """The kind of the source, and how many images it has."""
        if self.is_file and self.path.endswith(".jsonl"):
            count = sum(1 for _ in self._lines())
            if not count:
                raise InputError(f"{self.location} holds no image")
            return "list", count
        counts = dict.fromkeys(_KINDS, 0)
        for file in (file for files in self._walk(self.path) for file in files):
            if kind := _kind(file):
                counts[kind] += 1
        found = [kind for kind, count in counts.items() if count]
        if not found:
            wanted = f"({', '.join((*IMAGE_SUFFIXES, '.parquet', *_TARS, '.jsonl'))})"
            raise InputError(f"{self.location} holds no image and no file of images {wanted}")
        if len(found) > 1:
            several = " and ".join(_KINDS[kind] for kind in found)
            raise InputError(f"{self.location} holds {several}: give them one at a time")
        return found[0], counts["image"] or None

    def _type(self) -> fs.FileType:
        try:
            kind = self.system.get_file_info(self.path).type
        except OSError as error:
            raise InputError(f"{self.location} cannot be read ({reason_of(error)})") from error
        if kind == fs.FileType.NotFound:
            raise InputError(f"{self.location} is neither a file nor a folder")
        return kind

    def _url(self, path: str) -> str:
        return self._root_url + path.removeprefix(self._root_path)

    def _walk(self, folder: str) -> Iterator[list[str]]:
        """The files of a folder, then those of its sub-folders; neither hidden ones nor linked folders."""
        if self.is_file:
            yield [self.path]
            return
        try:
            found = self.system.get_file_info(fs.FileSelector(folder))
        except OSError as error:
            if folder == self.path:
                raise InputError(f"{self.location} cannot be read ({reason_of(error)})") from error
            if folder not in self.unread:
                self.unread.add(folder)
                _log.warning("the folder %s cannot be read (%s)", self._url(folder), reason_of(error))
            return
        own = sorted((info for info in found if not info.base_name.startswith(".")), key=lambda i: i.path)
        yield [info.path for info in own if info.is_file]
        for info in own:
            linked = self.local and Path(info.path).is_symlink()
            if info.type == fs.FileType.Directory and info.path != self.leave_out and not linked:
                yield from self._walk(info.path)

    def _files(self, kind: str) -> Iterator[str]:
        return (file for files in self._walk(self.path) for file in files if _kind(file) == kind)

    def _image_rows(self) -> Iterator[dict[str, Any]]:
        """Without a common caption each image has its own in the text file beside it."""
        for files in self._walk(self.path):
            known = set(files)
            for file in (file for file in files if _kind(file) == "image"):
                text = str(PurePosixPath(file).with_suffix(".txt"))
                row = {"image": self._url(file)}
                if self.caption is not None:
                    row["caption"] = self.caption
                elif text in known or (self.is_file and self.system.get_file_info(text).is_file):
                    row["caption_file"] = self._url(text)
                else:
                    row["problem"] = f"there is no caption: {PurePosixPath(text).name} is missing"
                yield row

    def _lines(self) -> Iterator[dict[str, Any]]:
        with self.system.open_input_stream(self.path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace")
            for number, line in enumerate(text, 1):
                if line.strip():
                    yield _line_row(line, number, self.location, self._root_url, self.caption)


def read_chunk(chunk: Chunk, *, caption: str | None = None) -> Iterator[CorpusItem]:
    """The images of a chunk with their bytes, one at a time; what cannot be read has a problem."""
    if chunk.kind == "list":
        yield from map(read_listed, json.loads(chunk.place))
    elif chunk.kind == "parquet":
        yield from parquet_items(json.loads(chunk.place), caption)
    else:
        yield from tar_items(chunk.place, caption)


def list_chunks(rows: Iterable[dict[str, Any]], size: int) -> Iterator[Chunk]:
    """Chunks of about `size` images, which end where the hash of an image's name says so."""
    part: list[str] = []
    for row in rows:
        part.append(json.dumps(row))
        ends = int(digest(PurePosixPath(row["image"]).name)[:8], 16) % size == 0
        if ends or len(part) >= 4 * size:
            yield Chunk(digest(*part), "list", f"[{','.join(part)}]")
            part = []
    if part:
        yield Chunk(digest(*part), "list", f"[{','.join(part)}]")


def _kind(file: str) -> str | None:
    name = file.lower()
    if PurePosixPath(name).suffix in IMAGE_SUFFIXES:
        return "image"
    if name.endswith(".parquet"):
        return "parquet"
    return "tar" if name.endswith(_TARS) else None


def _line_row(line: str, number: int, name: str, folder: str, caption: str | None) -> dict[str, Any]:
    try:
        image, text, spans = read_list_line(line, number, caption)
    except InputError as error:
        return {"image": f"{name}:{number}", "problem": str(error)}
    return {"image": beside(folder, image), "caption": text, "spans": spans}
