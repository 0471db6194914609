"""What a corpus holds: a folder, a JSONL list, Parquet or WebDataset shards, on disk or at a URL, in chunks.

A chunk is the unit of work, and a shard of the results. In a folder or a list a chunk ends where the hash of
an image's file name says so: a file that is added or removed changes the chunk that it is in, and no other.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from pyarrow import fs

from ppmn.errors import InputError
from ppmn.grounding.batch import GroundingJob, read_jobs
from ppmn.grounding.corpus_archives import parquet_chunks, parquet_items, tar_items
from ppmn.grounding.corpus_items import Chunk, CorpusItem, digest, open_location, read_bytes, read_listed
from ppmn.images import IMAGE_SUFFIXES


def plan_chunks(
    source: str, *, caption: str | None = None, leave_out: str | None = None, chunk_size: int = 128
) -> list[Chunk]:
    """The chunks of a corpus.

    Args:
        source: A folder, a JSONL list, a Parquet file or a tar file, or a folder of the last two; a path or
            a URL.
        caption: One caption for all images, in place of their own.
        leave_out: A folder inside `source` that is not read.
        chunk_size: Images per chunk, about; a tar file is one chunk.

    Returns:
        The chunks, in a stable order.

    Raises:
        InputError: The source cannot be read, or holds no image.
    """
    if chunk_size < 1:
        raise InputError(f"the chunk size is {chunk_size}; it must be 1 or more")
    system, path = open_location(source)
    local = isinstance(system, fs.LocalFileSystem)
    files = _files(system, path, source, leave_out)
    parquet = [file for file in files if file.endswith(".parquet")]
    tars = [file for file in files if file.endswith(".tar")]
    images = [file for file in files if PurePosixPath(file).suffix.lower() in IMAGE_SUFFIXES]
    if sum(map(bool, (parquet, tars, images))) > 1:
        raise InputError(f"{source} holds several of images, Parquet files and tar files; name one of them")
    base = "" if local else source.removesuffix("/").removesuffix(path.removesuffix("/"))
    if parquet:
        return [c for file in parquet for c in parquet_chunks(system, file, base + file, chunk_size)]
    if tars:
        return [Chunk(digest(base + file), "tar", base + file) for file in tars]
    if local:
        jobs = read_jobs(Path(path), caption, leave_out=Path(leave_out) if leave_out else None)
        return _list_chunks(map(_job_row, jobs), chunk_size)
    return _list_chunks(_remote_rows(system, files, base, source, caption), chunk_size)


def read_chunk(chunk: Chunk, *, caption: str | None = None) -> Iterator[CorpusItem]:
    """The images of a chunk with their bytes, one at a time; what cannot be read has a problem."""
    if chunk.kind == "list":
        yield from map(read_listed, json.loads(chunk.place))
    elif chunk.kind == "parquet":
        yield from parquet_items(json.loads(chunk.place), caption)
    else:
        yield from tar_items(chunk.place, caption)


def _files(system: fs.FileSystem, path: str, source: str, leave_out: str | None) -> list[str]:
    """The files of a folder and its sub-folders, or the file itself."""
    try:
        info = system.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise InputError(f"{source} is neither a file nor a folder")
        if info.type == fs.FileType.File:
            return [path]
        found = system.get_file_info(fs.FileSelector(path, recursive=True))
    except OSError as error:
        raise InputError(f"{source} cannot be read ({error})") from error
    hidden = (".", "_")
    names = [f.path for f in found if f.is_file and not f.base_name.startswith(hidden)]
    return sorted(name for name in names if not (leave_out and name.startswith(f"{leave_out}/")))


def _list_chunks(rows: Iterable[dict[str, Any]], chunk_size: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    part: list[dict[str, Any]] = []

    def close() -> None:
        names = [json.dumps(row) for row in part]
        chunks.append(Chunk(digest(*names), "list", json.dumps(part), len(part)))
        part.clear()

    for row in rows:
        part.append(row)
        ends = int(digest(PurePosixPath(row["image"]).name)[:8], 16) % chunk_size == 0
        if ends or len(part) >= 4 * chunk_size:
            close()
    if part:
        close()
    return chunks


def _job_row(job: GroundingJob) -> dict[str, Any]:
    return {"image": str(job.image), "caption": job.caption, "spans": job.spans, "problem": job.problem}


def _remote_rows(
    system: fs.FileSystem, files: list[str], base: str, source: str, caption: str | None
) -> Iterator[dict[str, Any]]:
    """The images of a folder at a URL, or of a JSONL list there."""
    if len(files) == 1 and files[0].endswith(".jsonl"):
        for number, line in enumerate(read_bytes(system, files[0]).decode().splitlines(), 1):
            yield _json_row(line, number, source, caption)
        return
    images = [file for file in files if PurePosixPath(file).suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise InputError(f"{source} holds no image ({', '.join(IMAGE_SUFFIXES)})")
    known = set(files)
    for file in images:
        text = str(PurePosixPath(file).with_suffix(".txt"))
        row = {"image": base + file, "caption": caption, "spans": None, "problem": None}
        if caption is None and text not in known:
            row["problem"] = f"there is no caption: {PurePosixPath(text).name} is missing"
        elif caption is None:
            row["caption_file"] = base + text
        yield row


def _json_row(line: str, number: int, source: str, caption: str | None) -> dict[str, Any]:
    try:
        row = json.loads(line)
        image = row["image"] if "://" in row["image"] else f"{source.rpartition('/')[0]}/{row['image']}"
        text = row["caption"] if caption is None else caption
        return {"image": image, "caption": str(text), "spans": row.get("spans"), "problem": None}
    except (ValueError, KeyError, TypeError) as error:
        problem = f"line {number} is not an image with a caption ({error})"
        return {"image": f"{source}:{number}", "caption": "", "spans": None, "problem": problem}
