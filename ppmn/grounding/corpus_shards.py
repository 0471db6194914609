"""The results of a corpus: Parquet shards of phrases, the images that failed, a manifest, and COCO JSON."""

import json
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ppmn.errors import InputError
from ppmn.files import make_writable_folder, replacing
from ppmn.grounding.corpus_items import open_location, reason_of
from ppmn.grounding.result import Grounding
from ppmn.images import encode_rle

_RLE = pa.struct([("size", pa.list_(pa.int32())), ("counts", pa.string())])
SHARD_SCHEMA = pa.schema(
    [
        ("image", pa.string()),
        ("image_sha256", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("caption", pa.string()),
        ("phrase", pa.string()),
        ("span", pa.list_(pa.int32())),
        ("score", pa.float64()),
        ("presence", pa.float64()),
        ("absent", pa.bool_()),
        ("foreign", pa.bool_()),
        ("area", pa.int64()),
        ("box", pa.list_(pa.int32())),
        ("rle", _RLE),
        ("model", pa.string()),
        ("model_sha256", pa.string()),
    ]
)
ERROR_SCHEMA = pa.schema([("image", pa.string()), ("caption", pa.string()), ("error", pa.string())])
_METADATA = b"ppmn"


@dataclass(frozen=True)
class ShardInfo:
    """What a shard says of itself.

    Attributes:
        key: A hash of the images, captions and settings that it was made of.
        images: How many images have phrases in it; one with two captions counts twice.
        phrases: Its rows.
        errors: How many images failed.
    """

    key: str
    images: int = 0
    phrases: int = 0
    errors: int = 0


def phrase_rows(grounding: Grounding, *, image: str, image_sha256: str, model_sha256: str) -> list[dict]:
    """One row of a shard for every phrase."""
    return [
        {
            "image": image,
            "image_sha256": image_sha256,
            "width": grounding.image.width,
            "height": grounding.image.height,
            "caption": grounding.caption,
            "phrase": phrase.text,
            "span": list(phrase.span),
            "score": phrase.score,
            "presence": phrase.presence,
            "absent": phrase.absent,
            "foreign": phrase.foreign,
            "area": phrase.area,
            "box": None if phrase.box is None else list(phrase.box),
            "rle": encode_rle(phrase.mask),
            "model": grounding.model,
            "model_sha256": model_sha256,
        }
        for phrase in grounding
    ]


class ResultFolder:
    """The folder of a corpus's results, on disk or at a URL.

    `shards/` holds a Parquet file per chunk and `_errors/` one per chunk with failures; `errors.parquet` and
    `_SUCCESS` are written when all chunks are complete. A file appears when it is complete.
    """

    def __init__(self, location: str) -> None:
        self.system, self.path = open_location(location)
        self.local = isinstance(self.system, fs.LocalFileSystem)
        self.location = self.path if self.local else location

    def prepare(self) -> None:
        """Make the folder; refused if nothing can be written to it."""
        if self.local:
            for folder in ("", "shards", "_errors"):
                make_writable_folder(Path(self.path) / folder)
            return
        self.write("_started", b"")
        self.delete("_started")

    def write(self, name: str, content: bytes) -> None:
        """Write a file, completely or not at all."""
        with self.open(name) as stream:
            stream.write(content)

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """A stream to a file that appears when it is complete."""
        try:
            if self.local:
                part = Path(self.path) / Path(name).parent / f".{uuid.uuid4().hex}"
                try:
                    with part.open("wb") as stream:
                        yield stream
                    part.replace(Path(self.path) / name)
                finally:
                    part.unlink(missing_ok=True)
            else:
                with self.system.open_output_stream(f"{self.path}/{name}") as stream:
                    yield stream
        except OSError as error:
            text = f"{self.location}/{name} cannot be written ({reason_of(error)})"
            raise InputError(f"{text}; the shards that are there are complete") from error

    def write_shard(self, name: str, rows: list[dict], errors: list[dict], info: ShardInfo) -> None:
        """Write the phrases of a chunk, after its failures: a shard that is there is complete."""
        metadata = {_METADATA: json.dumps(asdict(info)).encode()}
        if errors:
            self.write(f"_errors/{name}.parquet", _parquet(errors, ERROR_SCHEMA))
        else:
            self.delete(f"_errors/{name}.parquet")
        self.write(f"shards/{name}.parquet", _parquet(rows, SHARD_SCHEMA.with_metadata(metadata)))

    def shard_info(self, name: str) -> ShardInfo | None:
        """What a shard says of itself; None if there is no readable shard."""
        try:
            with self.system.open_input_file(f"{self.path}/shards/{name}.parquet") as stream:
                metadata = pq.read_schema(stream).metadata or {}
            return ShardInfo(**json.loads(metadata[_METADATA]))
        except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
            return None

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        if self.system.get_file_info(f"{self.path}/{name}").type == fs.FileType.File:
            self.system.delete_file(f"{self.path}/{name}")

    def names(self, folder: str) -> list[str]:
        """The names of the Parquet files in a folder, without their suffix."""
        selector = fs.FileSelector(f"{self.path}/{folder}", allow_not_found=True)
        files = [info.base_name for info in self.system.get_file_info(selector)]
        return sorted(f.removesuffix(".parquet") for f in files if f.endswith(".parquet") and f[0] != ".")

    def rows(self, folder: str, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """The rows of all files of a folder, one file in memory at a time."""
        for name in self.names(folder):
            with self.system.open_input_file(f"{self.path}/{folder}/{name}.parquet") as stream:
                yield from pq.read_table(stream, columns=columns).to_pylist()

    def keep_only(self, known: Collection[str]) -> int:
        """Remove the shards of chunks that the corpus no longer has; returns how many."""
        old = [name for name in self.names("shards") if name not in known]
        for name in old:
            self.delete(f"shards/{name}.parquet")
        for name in self.names("_errors"):
            if name not in known:
                self.delete(f"_errors/{name}.parquet")
        return len(old)

    def finish(self, manifest: dict[str, Any] | None) -> None:
        """Write `errors.parquet` and the manifest; None if the results are not complete."""
        with self.open("errors.parquet") as stream, pq.ParquetWriter(stream, ERROR_SCHEMA) as errors:
            for name in self.names("_errors"):
                with self.system.open_input_file(f"{self.path}/_errors/{name}.parquet") as part:
                    errors.write_table(pq.read_table(part))
        if manifest is not None:
            self.write("_SUCCESS", (json.dumps(manifest, indent=1) + "\n").encode())


def _parquet(rows: list[dict], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def write_coco(results: ResultFolder, file: Path) -> None:
    """Write the phrases of all shards as one COCO annotation file, one shard in memory at a time."""
    categories: dict[str, int] = {}
    with replacing(file) as part, part.open("w", encoding="utf-8") as out:
        out.write('{"info": {"description": "panoptic narrative grounding"}, "annotations": [')
        for number, (image, row) in enumerate(_numbered(results.rows("shards")), 1):
            out.write(",\n" if number > 1 else "\n")
            out.write(json.dumps(_coco_annotation(row, categories) | {"id": number, "image_id": image}))
        out.write('],\n"images": [')
        last = 0
        for image, row in _numbered(results.rows("shards", ["image", "caption", "width", "height"])):
            if image > last:
                entry = {"id": image, "file_name": row.pop("image"), **row}
                out.write(("," if last else "") + "\n" + json.dumps(entry))
                last = image
        names = [{"id": id, "name": name} for name, id in categories.items()]
        out.write(f'],\n"categories": {json.dumps(names)}}}\n')


def _numbered(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with the number of their image; the rows of one image follow each other."""
    number, current = 0, None
    for row in rows:
        own = (row["image"], row["caption"])
        number, current = number + (own != current), own
        yield number, row


def _coco_annotation(row: dict[str, Any], categories: dict[str, int]) -> dict[str, Any]:
    return {
        "category_id": categories.setdefault(row["phrase"].lower(), len(categories) + 1),
        "bbox": row["box"] or [0, 0, 0, 0],
        "area": row["area"],
        "iscrowd": 0,
        "score": row["score"],
        "presence": row["presence"],
        "absent": row["absent"],
        "foreign": row["foreign"],
        "text": row["phrase"],
        "span": row["span"],
        "segmentation": row["rle"],
    }
