"""The narratives of a split behind an index: built once, kept in the user's cache, memory-mapped.

An index holds one narrative per JSON text, then JSON with what they share, then where each text starts.
"""

import hashlib
import json
import mmap
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ppmn.data.narratives import AnnotatedPhrase, DataProblem, Narrative, narratives_file, read_narratives
from ppmn.data.panoptic import Category, PanopticImage, Segment, panoptic_file, read_panoptic, split_folders
from ppmn.errors import InputError
from ppmn.files import cache_folder, existing_file, replacing

_VERSION = 6  # of the index; part of its file name
_MAGIC = b"narratives"  # at the end of an index that is complete


class Narratives(Sequence[Narrative]):
    """The narratives of one split that have a grounded phrase, in the order of their file.

    They stay in a memory-mapped file: workers share one copy, and only the file's name is pickled.
    `fingerprint` is the SHA-256 of the annotations that they were read from, `complete` says whether these
    are complete (see `Panoptic`), `skipped` how many narratives of the file have no grounded phrase and
    are left out, `images_without` how many annotated images have no narrative here, `expressions` how many
    expressions their segments have, and `problems` how many problems there are; `ppmn data check` lists them.
    """

    def __init__(self, root: Path, split: str, file: Path):
        self.root, self.split, self.file = root, split, file
        self._image_folder, self._png_folder = split_folders(root, split)
        with file.open("rb") as content:
            self._content = mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ)
        self._starts = _read_starts(self._content)
        metadata = json.loads(self._part(-1))
        categories = (Category(**c | {"synonyms": tuple(c["synonyms"])}) for c in metadata["categories"])
        self.categories = {c.id: c for c in categories}
        self.fingerprint: str = metadata["fingerprint"]
        self.complete: bool = metadata["complete"]
        self.skipped: int = metadata["skipped"]
        self.images_without: int = metadata["images_without"]
        self.expressions: int = metadata["expressions"]
        self.problems: int = metadata["problems"]

    def __reduce__(self) -> tuple[type, tuple[Path, str, Path]]:
        return Narratives, (self.root, self.split, self.file)

    def __len__(self) -> int:
        return len(self._starts) - 2

    @overload
    def __getitem__(self, i: int) -> Narrative: ...
    @overload
    def __getitem__(self, i: slice) -> list[Narrative]: ...
    def __getitem__(self, i: int | slice) -> Narrative | list[Narrative]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"narrative {i} of {len(self)}")
        return self._narrative(json.loads(self._part(i % len(self))))

    def _part(self, i: int) -> bytes:
        """One of the JSON texts; the last is what narratives share."""
        start, end = self._starts[:-1][i], self._starts[1:][i]
        return self._content[start:end]

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
    index = cache_folder() / f"narratives-{_VERSION}-{fingerprint[:32]}.index"
    try:
        narratives = Narratives(root, split, index)
    except (OSError, ValueError, KeyError, TypeError):  # missing or damaged
        _build(root, split, fingerprint, index)
        narratives = Narratives(root, split, index)
    found = f"{narratives.problems} problems; `ppmn data check {root}` lists them"
    skipped = f"{narratives.skipped} narratives without a grounded phrase are left out"
    for count, text in ((narratives.problems, found), (narratives.skipped, skipped)):
        if count:
            warnings.warn(f"{root} split {split}: {text}", stacklevel=2)
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
        "images_without": len({i.id for i in panoptic.images} - {n.image.id for n in grounded}),
        "expressions": sum(len(s.expressions) for i in panoptic.images for s in i.segments),
        "problems": len(problems) + len(panoptic.unlisted) + len(panoptic.repeated),
    }
    write_index(grounded, metadata, root, split, index)


def write_index(
    narratives: Sequence[Narrative], metadata: dict[str, Any], root: Path, split: str, file: Path
) -> None:
    """Write an index."""
    image_folder, png_folder = split_folders(root, split)
    rows = (_row(narrative, image_folder, png_folder) for narrative in narratives)
    starts = [0]
    try:
        with replacing(file) as part, part.open("wb") as content:
            for text in chain(rows, [metadata]):
                starts.append(starts[-1] + content.write(json.dumps(text, separators=(",", ":")).encode()))
            content.write(np.array([*starts, len(starts)], "<i8").tobytes() + _MAGIC)
    except InputError as error:
        raise InputError(f"{error}; set PPMN_CACHE to a folder that can be written") from error


def _read_starts(content: mmap.mmap) -> NDArray[np.int64]:
    """Where each JSON text of an index starts, and where the last one ends."""
    end = len(content) - len(_MAGIC) - 8  # of the starts, which their number follows
    if end < 0 or content[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("the index is damaged")
    (count,) = np.frombuffer(content[end : end + 8], "<i8").tolist()
    first = end - 8 * count
    if count < 2 or first < 0:
        raise ValueError("the index is damaged")
    return np.frombuffer(content, "<i8", count, first)


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
