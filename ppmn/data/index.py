"""The narratives of a split behind an Arrow index: built once, kept in the user's cache, memory-mapped."""

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import platformdirs

from ppmn.data.narratives import AnnotatedPhrase, DataProblem, Narrative, narratives_file, read_narratives
from ppmn.data.panoptic import Category, PanopticImage, Segment, panoptic_file, read_panoptic, split_folders
from ppmn.errors import InputError
from ppmn.files import replacing

_VERSION = 3  # of the index; part of its file name
_BATCH = 4096  # narratives per Arrow batch: limits the memory of building, not of reading
_SEGMENT_FIELDS = tuple(f.name for f in fields(Segment))
_PHRASE_FIELDS = tuple(f.name for f in fields(AnnotatedPhrase))


def cache_folder() -> Path:
    """$PPMN_CACHE, or the user's cache folder for `ppmn`."""
    own = os.environ.get("PPMN_CACHE")
    return Path(own) if own else platformdirs.user_cache_path("ppmn", appauthor=False)


class Narratives(Sequence[Narrative]):
    """The narratives of one split that have a grounded phrase, in the order of their file.

    They stay in a memory-mapped file: workers share one copy, and only the file's name is pickled.
    """

    def __init__(self, root: Path, split: str, file: Path):
        self.root = root
        self.split = split
        self.file = file
        self._image_folder, self._png_folder = split_folders(root, split)

    def __getstate__(self) -> dict[str, Any]:
        cached = ("_table", "_metadata", "categories")
        return {name: value for name, value in self.__dict__.items() if name not in cached}

    @cached_property
    def _table(self) -> Any:
        arrow = _pyarrow()
        with arrow.memory_map(str(self.file)) as source:
            return arrow.ipc.open_file(source).read_all()

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = json.loads(self._table.schema.metadata[b"ppmn"])
        return metadata

    @cached_property
    def categories(self) -> dict[int, Category]:
        """The categories of the data set by id."""
        raw = (c | {"synonyms": tuple(c["synonyms"])} for c in self._metadata["categories"])
        return {c["id"]: Category(**c) for c in raw}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the annotations that the narratives were read from."""
        return str(self._metadata["fingerprint"])

    @property
    def complete(self) -> bool:
        """Whether the annotations are complete, see `Panoptic`."""
        return bool(self._metadata["complete"])

    @property
    def skipped(self) -> int:
        """How many narratives of the file have no grounded phrase and are left out."""
        return int(self._metadata["skipped"])

    @property
    def problems(self) -> int:
        """How many problems the annotations have; `ppmn data check` lists them."""
        return int(self._metadata["problems"])

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, i: int) -> Narrative: ...
    @overload
    def __getitem__(self, i: slice) -> list[Narrative]: ...
    def __getitem__(self, i: int | slice) -> Narrative | list[Narrative]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"narrative {i} of {len(self)}")
        return self._narrative(self._table.slice(i % len(self), 1).to_pylist()[0])

    def _narrative(self, row: dict[str, Any]) -> Narrative:
        image = PanopticImage(
            row["image_id"],
            self._image_folder / row["file"],
            self._png_folder / row["segmentation"],
            row["height"],
            row["width"],
            tuple(Segment(**s | {"bbox": tuple(s["bbox"])}) for s in row["segments"]),
        )
        phrases = (AnnotatedPhrase(**p | {"segment_ids": tuple(p["segment_ids"])}) for p in row["phrases"])
        return Narrative(image, row["index"], row["caption"], tuple(phrases))


def open_narratives(root: Path, split: str) -> Narratives:
    """The narratives of a split; their index is built on the first call and kept in the user's cache.

    The index is found by the content of the annotations, so ROOT may be read-only, move or change.
    """
    if not panoptic_file(root, split).is_file():
        raise InputError(f"{root} has no split {split!r}: {panoptic_file(root, split)} is missing")
    if not narratives_file(root, split).is_file():
        raise InputError(
            f"{root} has no narratives of split {split!r}: {narratives_file(root, split)} is missing"
        )
    fingerprint = _fingerprint(root, split)
    index = cache_folder() / f"narratives-{_VERSION}-{fingerprint[:32]}.arrow"
    narratives = Narratives(root, split, index)
    if not _readable(narratives):
        _build(root, split, fingerprint, index)
        narratives = Narratives(root, split, index)
    if narratives.problems:
        warnings.warn(
            f"{root} split {split}: {narratives.problems} problems; `ppmn data check {root}` lists them",
            stacklevel=2,
        )
    return narratives


def _fingerprint(root: Path, split: str) -> str:
    digest = hashlib.sha256()
    for file in (panoptic_file(root, split), narratives_file(root, split)):
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise InputError(f"{file} cannot be read ({error})") from error
    return digest.hexdigest()


def _readable(narratives: Narratives) -> bool:
    """Whether the index exists and is whole; a damaged one is rebuilt."""
    try:
        return len(narratives) >= 0 and bool(narratives.fingerprint)
    except (OSError, ValueError, KeyError, TypeError):  # ArrowInvalid is a ValueError
        return False


def _build(root: Path, split: str, fingerprint: str, index: Path) -> None:
    panoptic = read_panoptic(root, split)
    problems: list[DataProblem] = []
    narratives = list(read_narratives(panoptic, problems.append))
    grounded = [n for n in narratives if n.grounded]
    metadata = {
        "fingerprint": fingerprint,
        "categories": [asdict(c) for c in panoptic.categories.values()],
        "complete": panoptic.complete,
        "skipped": len(narratives) - len(grounded),
        "problems": len(problems),
    }
    write_index(grounded, metadata, root, split, index)


def write_index(
    narratives: Sequence[Narrative], metadata: dict[str, Any], root: Path, split: str, file: Path
) -> None:
    """Write an index, uncompressed so that rows are read straight from the mapped file."""
    arrow = _pyarrow()
    schema = _schema(arrow).with_metadata({"ppmn": json.dumps(metadata)})
    image_folder, png_folder = split_folders(root, split)
    try:
        with (
            replacing(file) as part,
            arrow.OSFile(str(part), "wb") as sink,
            arrow.ipc.new_file(sink, schema) as writer,
        ):
            for first in range(0, len(narratives), _BATCH):
                rows = [_row(n, image_folder, png_folder) for n in narratives[first : first + _BATCH]]
                writer.write_batch(arrow.RecordBatch.from_pylist(rows, schema))
    except InputError as error:
        raise InputError(f"{error}; set PPMN_CACHE to a folder that can be written") from error


def _schema(arrow: Any) -> Any:
    number, flag, text = arrow.int64(), arrow.bool_(), arrow.string()
    segment = {"id": number, "category_id": number, "area": number, "bbox": arrow.list_(number, 4)}
    segment |= {"iscrowd": flag, "score": arrow.float64()}
    phrase = {"start": number, "end": number, "segment_ids": arrow.list_(number)}
    phrase |= {"isthing": flag, "absent": flag}
    image = {"image_id": number, "file": text, "segmentation": text, "height": number, "width": number}
    image["segments"] = arrow.list_(arrow.struct(segment))
    narrative = {"index": number, "caption": text, "phrases": arrow.list_(arrow.struct(phrase))}
    return arrow.schema(image | narrative)


def _row(narrative: Narrative, image_folder: Path, png_folder: Path) -> dict[str, Any]:
    image = narrative.image
    return {
        "image_id": image.id,
        "file": _relative(image.file, image_folder),
        "segmentation": _relative(image.segmentation, png_folder),
        "height": image.height,
        "width": image.width,
        "segments": [_values(s, _SEGMENT_FIELDS) for s in image.segments],
        "index": narrative.index,
        "caption": narrative.caption,
        "phrases": [_values(p, _PHRASE_FIELDS) for p in narrative.phrases],
    }


def _values(item: Segment | AnnotatedPhrase, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


def _relative(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def _pyarrow() -> Any:
    try:
        import pyarrow as arrow
        import pyarrow.ipc
    except ImportError as error:
        raise InputError("reading narratives needs pyarrow: pip install 'ppmn[train]'") from error
    return arrow
