"""COCO panoptic annotations: one JSON file of segments, and one PNG of segment ids per image."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppmn.errors import InputError
from ppmn.files import existing_file, read_json
from ppmn.images import read_image, rgb_to_ids
from ppmn.types import Box, SegmentIds

UNLABELED = 0
IGNORE_ID = 16_777_215  # white in the PNG: pixels that count neither as inside nor as outside


@dataclass(frozen=True)
class DataSpec:
    """A folder of data, and one split of it or all.

    The weight is how often each image of a source is used in an epoch of training: 3 is three times, 0.2 a
    random fifth of its images. `incomplete` says that not all that its categories name is annotated,
    whatever its files say.
    """

    root: Path
    split: str | None = None
    weight: float = 1.0
    incomplete: bool = False

    @property
    def splits(self) -> list[str]:
        """The split that is named, otherwise all splits of the folder."""
        return [self.split] if self.split else splits(self.root)


def source_name(root: Path, split: str) -> str:
    """`folder:split`, by which reports name a source."""
    return f"{root.resolve().name}:{split}"


def named_splits(specs: Sequence[DataSpec]) -> Iterator[tuple[str, DataSpec, str]]:
    """The name of every split that is meant, its specification and the split; one name twice is refused."""
    roots: dict[str, Path] = {}
    for spec in specs:
        for split in spec.splits:
            name = source_name(spec.root, split)
            if name in roots:
                raise InputError(f"two sources are called {name}, in {roots[name]} and in {spec.root}")
            roots[name] = spec.root
            yield name, spec, split


@dataclass(frozen=True)
class Category:
    """One category of a data set; `synonyms` are other names that its annotation file gives."""

    id: int
    name: str
    isthing: bool
    synonyms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """One region of an image.

    `iscrowd` means an unknown number of things, `score` that a model found it; `expressions` are what
    people wrote to tell it from all else in the image.
    """

    id: int
    category_id: int
    area: int
    bbox: Box
    iscrowd: bool = False
    score: float | None = None
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True)
class PanopticImage:
    """One annotated image: its file, the PNG of its segment ids, and its segments."""

    id: int
    file: Path
    segmentation: Path
    height: int
    width: int
    segments: tuple[Segment, ...]

    @property
    def described(self) -> bool:
        """Whether people wrote expressions of any segment."""
        return any(s.expressions for s in self.segments)

    def ids(self) -> SegmentIds:
        """Segment id of every pixel, (H, W)."""
        return read_ids(self.segmentation)


@dataclass(frozen=True)
class Panoptic:
    """One split of a COCO panoptic folder.

    `complete` is the file's own `"complete"`: everything that the categories name is annotated, so what is
    not annotated is not in the image. Where it is not given, it is true unless segments have `expressions`.
    """

    root: Path
    split: str
    categories: dict[int, Category]
    images: tuple[PanopticImage, ...]
    unannotated: tuple[int, ...] = ()  # ids of images that the file lists but does not annotate
    unlisted: tuple[int, ...] = ()  # ids of images that the file annotates but does not list
    repeated: tuple[int, ...] = ()  # ids of images with several annotations, of which the last is read
    complete: bool = True


def unknown_ids(categories: Mapping[int, Category], *, complete: bool) -> tuple[int, ...]:
    """The ids of pixels of which is not known what they show.

    What has no label is unknown where stuff is annotated too, and background elsewhere.
    """
    has_stuff = any(not category.isthing for category in categories.values())
    return (UNLABELED, IGNORE_ID) if has_stuff and complete else (IGNORE_ID,)


def read_ids(file: Path) -> SegmentIds:
    """Segment id of every pixel of a panoptic PNG: R + 256 G + 65536 B."""
    return rgb_to_ids(np.asarray(read_image(file)))


def segment_positions(ids: SegmentIds, listed: list[int]) -> NDArray[np.int32]:
    """Position from 1 of each pixel's segment in `listed`, 0 for others.

    Looked up by remainders, since ids reach 2^24.
    """
    size = 1021
    while len({id % size for id in listed}) < len(set(listed)):
        size += 2
    table, keys = np.zeros(size, np.int32), np.array([-1, *listed], np.int32)
    for n, id in enumerate(listed, 1):
        table[id % size] = n
    positions = table[ids % size]
    return np.where(keys[positions] == ids, positions, 0)


def splits(root: Path) -> list[str]:
    """Names of the splits in a folder, by its `annotations/panoptic_*.json`."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder")
    names = sorted(f.stem.removeprefix("panoptic_") for f in (root / "annotations").glob("panoptic_*.json"))
    if not names:
        raise InputError(f"{root} has no split: there is no annotations/panoptic_*.json in it")
    return names


def panoptic_file(root: Path, split: str) -> Path:
    """`annotations/panoptic_<split>.json`."""
    return root / "annotations" / f"panoptic_{split}.json"


def split_folders(root: Path, split: str) -> tuple[Path, Path]:
    """Folders of images and of panoptic PNGs: the benchmark's layout, or COCO's archives as they unpack."""
    images = (root / "images" / split, root / split)
    pngs = (
        root / "annotations" / "panoptic_segmentation" / split,
        root / "annotations" / f"panoptic_{split}",
        root / "panoptic_segmentation" / split,
    )
    image_folder = next((f for f in images if f.is_dir()), images[0])
    return image_folder, next((f for f in pngs if f.is_dir()), pngs[0])


def read_panoptic(root: Path, split: str) -> Panoptic:
    """Read `annotations/panoptic_<split>.json`; pixels are read when they are needed."""
    file = existing_file(panoptic_file(root, split), f"{root} has no split {split!r}")
    raw = read_json(file)
    try:
        categories = {
            c["id"]: Category(c["id"], c["name"], bool(c["isthing"]), tuple(c.get("synonyms", ())))
            for c in raw["categories"]
        }
        annotations = {a["image_id"]: a for a in raw["annotations"]}
        image_folder, png_folder = split_folders(root, split)
        images = tuple(
            _image(image, annotations[image["id"]], image_folder, png_folder)
            for image in raw["images"]
            if image["id"] in annotations
        )
        unannotated = tuple(i["id"] for i in raw["images"] if i["id"] not in annotations)
        listed = {i["id"] for i in raw["images"]}
        unlisted = tuple(id for id in annotations if id not in listed)
        times = Counter(a["image_id"] for a in raw["annotations"])
        repeated = tuple(id for id, count in times.items() if count > 1)
        complete = bool(raw.get("complete", not any(image.described for image in images)))
    except KeyError as error:
        raise InputError(f"{file} is not a COCO panoptic file: an entry has no {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file} is not a COCO panoptic file ({error})") from error
    return Panoptic(root, split, categories, images, unannotated, unlisted, repeated, complete)


def _image(
    image: Mapping[str, Any], annotation: Mapping[str, Any], image_folder: Path, png_folder: Path
) -> PanopticImage:
    return PanopticImage(
        int(image["id"]),
        image_folder / image["file_name"],
        png_folder / annotation["file_name"],
        int(image["height"]),
        int(image["width"]),
        tuple(_segment(s) for s in annotation["segments_info"]),
    )


def _segment(raw: Mapping[str, Any]) -> Segment:
    if not 0 < int(raw["id"]) <= IGNORE_ID:
        raise ValueError(f"segment id {raw['id']} is not a color between 1 and {IGNORE_ID}")
    x, y, w, h = (int(v) for v in raw["bbox"])
    id, area, crowd = int(raw["id"]), int(raw["area"]), bool(raw.get("iscrowd", 0))
    expressions = raw.get("expressions", [])
    if not isinstance(expressions, list) or not all(isinstance(e, str) for e in expressions):
        raise ValueError(f"the expressions of segment {id} are {expressions!r}, not a list of strings")
    return Segment(id, raw["category_id"], area, (x, y, w, h), crowd, raw.get("score"), tuple(expressions))
