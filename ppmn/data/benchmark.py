"""The PNG benchmark as it is downloaded, behind an index that is built once and memory-mapped."""

import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from ppmn.data.index import cache_folder, pyarrow, write_index
from ppmn.data.narratives import (
    AnnotatedPhrase,
    Narrative,
    Problem,
    narratives_file,
    read_narratives,
)
from ppmn.data.panoptic import (
    Category,
    PanopticImage,
    Segment,
    folders,
    panoptic_file,
    read_panoptic,
    splits,
)
from ppmn.errors import InputError

__all__ = [
    "AnnotatedPhrase",
    "DataSpec",
    "Narrative",
    "Narratives",
    "cache_folder",
    "open_narratives",
    "parse_spec",
    "splits",
]

FORMAT = 2  # of the index; another number makes another file


@dataclass(frozen=True)
class DataSpec:
    """What `--data ROOT[:SPLIT][=WEIGHT]` says; without a split all splits in ROOT are meant."""

    root: Path
    split: str | None = None
    weight: float = 1.0


def parse_spec(text: str) -> DataSpec:
    """Read `ROOT[:SPLIT][=WEIGHT]`; a weight is how often a source is drawn from, relative to others."""
    rest, weight = text, 1.0
    if not Path(text).is_dir() and "=" in text:
        rest, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError as error:
            raise InputError(f"data {text}: the weight {number!r} is not a number") from error
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(f"data {text}: the weight must be a number above 0, not {weight:g}")
    root, split = rest, None
    if not Path(rest).is_dir() and ":" in rest:
        root, _, split = rest.rpartition(":")
    if not root or not Path(root).is_dir():
        raise InputError(f"data {text}: {root or rest!r} is not a folder")
    if split is not None and split not in splits(Path(root)):
        raise InputError(f"data {text}: no split {split!r}; {root} has {', '.join(splits(Path(root)))}")
    return DataSpec(Path(root), split, weight)


class Narratives(Sequence[Narrative]):
    """The narratives of one split with something grounded, in the order of the benchmark.

    They stay in a memory-mapped file: any number of workers share one copy, and what is sent to a
    worker is the file's name.
    """

    def __init__(self, root: Path, split: str, file: Path):
        self.root = root
        self.split = split
        self.file = file
        self._photos, self._pngs = folders(root, split)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k in ("root", "split", "file", "_photos", "_pngs")}

    @cached_property
    def _rows(self) -> Any:
        arrow = pyarrow()
        with arrow.memory_map(str(self.file)) as source:
            return arrow.ipc.open_file(source).read_all()

    @cached_property
    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(self._rows.schema.metadata[b"ppmn"])
        return about

    @cached_property
    def categories(self) -> dict[int, Category]:
        fields = (c | {"synonyms": tuple(c["synonyms"])} for c in self._about["categories"])
        return {c["id"]: Category(**c) for c in fields}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the annotations that the narratives were read from."""
        return str(self._about["fingerprint"])

    @property
    def skipped(self) -> int:
        """How many narratives have nothing grounded and are not among these."""
        return int(self._about["skipped"])

    @property
    def problems(self) -> int:
        """How many problems the annotations have; `ppmn data check` lists them."""
        return int(self._about["problems"])

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    @overload
    def __getitem__(self, i: int) -> Narrative: ...
    @overload
    def __getitem__(self, i: slice) -> list[Narrative]: ...
    def __getitem__(self, i: int | slice) -> Narrative | list[Narrative]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"narrative {i} of {len(self)}")
        return self._narrative(self._rows.slice(i % len(self), 1).to_pylist()[0])

    def _narrative(self, row: dict[str, Any]) -> Narrative:
        image = PanopticImage(
            row["image_id"],
            self._photos / row["photo"],
            self._pngs / row["segmentation"],
            row["height"],
            row["width"],
            tuple(Segment(**s | {"bbox": tuple(s["bbox"])}) for s in row["segments"]),
        )
        phrases = (AnnotatedPhrase(**p | {"segment_ids": tuple(p["segment_ids"])}) for p in row["phrases"])
        return Narrative(image, row["index"], row["caption"], tuple(phrases))


def open_narratives(root: Path, split: str) -> Narratives:
    """The narratives of a split; their index is made on the first call and kept in the user's cache.

    The index is found by the content of the annotations, so ROOT may be read-only, move or change.
    """
    if not panoptic_file(root, split).is_file():
        raise InputError(f"{root} has no split {split!r}: {panoptic_file(root, split)} is missing")
    if not narratives_file(root, split).is_file():
        raise InputError(
            f"{root} has no narratives of split {split!r}: {narratives_file(root, split)} is missing"
        )
    fingerprint = _fingerprint(root, split)
    index = cache_folder() / f"narratives-{FORMAT}-{fingerprint[:32]}.arrow"
    found = Narratives(root, split, index)
    if not _usable(found):
        _build(root, split, fingerprint, index)
        found = Narratives(root, split, index)
    if found.problems:
        warnings.warn(
            f"{root} split {split}: {found.problems} problems; `ppmn data check {root}` lists them",
            stacklevel=2,
        )
    return found


def _build(root: Path, split: str, fingerprint: str, index: Path) -> None:
    panoptic = read_panoptic(root, split)
    problems: list[Problem] = []
    narratives = list(read_narratives(panoptic, problems.append))
    kept = [n for n in narratives if n.grounded]
    about = {
        "fingerprint": fingerprint,
        "categories": [asdict(c) for c in panoptic.categories.values()],
        "skipped": len(narratives) - len(kept),
        "problems": len(problems),
    }
    write_index(kept, about, root, split, index)


def _fingerprint(root: Path, split: str) -> str:
    digest = hashlib.sha256()
    for file in (panoptic_file(root, split), narratives_file(root, split)):
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise InputError(f"{file} cannot be read ({error})") from error
    return digest.hexdigest()


def _usable(narratives: Narratives) -> bool:
    """Whether the index is there and whole; a damaged one is made anew."""
    try:
        return len(narratives) >= 0 and bool(narratives.fingerprint)
    except (OSError, ValueError, KeyError, TypeError):  # ArrowInvalid is a ValueError
        return False
