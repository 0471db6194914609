"""The narratives of a split behind an Arrow index: built once, kept in the user's cache, memory-mapped."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, overload

from ppmn.data.narratives import AnnotatedPhrase, DataProblem, Narrative, narratives_file, read_narratives
from ppmn.data.panoptic import Category, PanopticImage, Segment, panoptic_file, read_panoptic, split_folders
from ppmn.errors import InputError
from ppmn.files import cache_folder, existing_file, replacing

_VERSION = 4  # of the index; part of its file name
_BATCH = 4096  # narratives per Arrow batch: limits the memory of building, not of reading


class Narratives(Sequence[Narrative]):
    """The narratives of one split that have a grounded phrase, in the order of their file.

    They stay in a memory-mapped file: workers share one copy, and only the file's name is pickled.
    `fingerprint` is the SHA-256 of the annotations that they were read from, `complete` says whether these
    are complete (see `Panoptic`), `skipped` how many narratives of the file have no grounded phrase and
    are left out, and `problems` how many problems there are; `ppmn data check` lists them.
    """

    def __init__(self, root: Path, split: str, file: Path):
        self.root, self.split, self.file = root, split, file
        self._image_folder, self._png_folder = split_folders(root, split)
        arrow = _pyarrow()
        with arrow.memory_map(str(file)) as source:
            self._table = arrow.ipc.open_file(source).read_all()
        metadata = json.loads(self._table.schema.metadata[b"ppmn"])
        categories = (Category(**c | {"synonyms": tuple(c["synonyms"])}) for c in metadata["categories"])
        self.categories = {c.id: c for c in categories}
        self.fingerprint: str = metadata["fingerprint"]
        self.complete: bool = metadata["complete"]
        self.skipped: int = metadata["skipped"]
        self.problems: int = metadata["problems"]

    def __reduce__(self) -> tuple[type, tuple[Path, str, Path]]:
        return Narratives, (self.root, self.split, self.file)

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
            tuple(
                Segment(**s | {"bbox": tuple(s["bbox"]), "expressions": tuple(s["expressions"])})
                for s in row["segments"]
            ),
        )
        phrases = (AnnotatedPhrase(**p | {"segment_ids": tuple(p["segment_ids"])}) for p in row["phrases"])
        return Narrative(image, row["index"], row["caption"], tuple(phrases))


def open_narratives(root: Path, split: str) -> Narratives:
    """The narratives of a split; their index is built on the first call and kept in the user's cache.

    The index is found by the content of the annotations, so ROOT may be read-only, move or change.
    """
    segments = existing_file(panoptic_file(root, split), f"{root} has no split {split!r}")
    captions = existing_file(narratives_file(root, split), f"{root} has no narratives of split {split!r}")
    fingerprint = _fingerprint(segments, captions)
    index = cache_folder() / f"narratives-{_VERSION}-{fingerprint[:32]}.arrow"
    try:
        narratives = Narratives(root, split, index)
    except (OSError, ValueError, KeyError, TypeError):  # missing or damaged; ArrowInvalid is a ValueError
        _build(root, split, fingerprint, index)
        narratives = Narratives(root, split, index)
    if narratives.problems:
        warnings.warn(
            f"{root} split {split}: {narratives.problems} problems; `ppmn data check {root}` lists them",
            stacklevel=2,
        )
    return narratives


def _fingerprint(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise InputError(f"{file} cannot be read ({error})") from error
    return digest.hexdigest()


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
    segment |= {"iscrowd": flag, "score": arrow.float64(), "expressions": arrow.list_(text)}
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
        "segments": [_values(s) for s in image.segments],
        "index": narrative.index,
        "caption": narrative.caption,
        "phrases": [_values(p) for p in narrative.phrases],
    }


def _values(item: Segment | AnnotatedPhrase) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}  # asdict is slow


def _relative(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def _pyarrow() -> Any:
    """Arrow, imported on first use: it takes long."""
    import pyarrow as arrow
    import pyarrow.ipc

    return arrow
