"""COCO panoptic annotations: one JSON of segments, one PNG of segment ids a photo."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppmn.errors import InputError
from ppmn.files import read_json

VOID = 0  # unlabelled
BORDER = 16_777_215  # white in the PNG: neither in nor out


@dataclass(frozen=True)
class Category:
    """One category of a source; `synonyms` are other names the source itself gives it."""

    id: int
    name: str
    isthing: bool
    synonyms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """One region of a photo; `iscrowd` means that the number of things in it is unknown."""

    id: int
    category_id: int
    area: int
    bbox: tuple[int, int, int, int]
    iscrowd: bool = False
    score: float | None = None


@dataclass(frozen=True)
class PanopticImage:
    """One photo with its segments; `file` and `segmentation` are paths."""

    id: int
    file: Path
    segmentation: Path
    height: int
    width: int
    segments: tuple[Segment, ...]

    def ids(self) -> NDArray[np.int32]:
        """Segment id of every pixel, (H, W)."""
        return read_ids(self.segmentation)


@dataclass(frozen=True)
class Panoptic:
    """One split of a COCO panoptic folder as it is downloaded."""

    root: Path
    split: str
    categories: dict[int, Category]
    images: tuple[PanopticImage, ...]
    unannotated: tuple[int, ...] = ()  # ids of images that the file lists but does not annotate


def read_ids(file: Path) -> NDArray[np.int32]:
    """Segment id of every pixel: R + 256 G + 65536 B."""
    try:
        with Image.open(file) as png:
            rgb = np.asarray(png.convert("RGB"), dtype=np.int32)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{file} is not a readable panoptic PNG ({error})") from error
    return rgb[..., 0] + 256 * rgb[..., 1] + 65_536 * rgb[..., 2]


def splits(root: Path) -> list[str]:
    """Names of the splits in a folder: what `annotations/panoptic_*.json` are there."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder")
    names = sorted(f.stem.removeprefix("panoptic_") for f in (root / "annotations").glob("panoptic_*.json"))
    if not names:
        raise InputError(f"{root} has no split: there is no annotations/panoptic_*.json in it")
    return names


def panoptic_file(root: Path, split: str) -> Path:
    return root / "annotations" / f"panoptic_{split}.json"


def folders(root: Path, split: str) -> tuple[Path, Path]:
    """Where photos and panoptic PNGs are: in the benchmark's layout or as COCO's own archives unpack."""
    photos = (root / "images" / split, root / split)
    pngs = (
        root / "annotations" / "panoptic_segmentation" / split,
        root / "annotations" / f"panoptic_{split}",
        root / "panoptic_segmentation" / split,
    )
    photo_folder = next((f for f in photos if f.is_dir()), photos[0])
    return photo_folder, next((f for f in pngs if f.is_dir()), pngs[0])


def read_panoptic(root: Path, split: str) -> Panoptic:
    """Read `annotations/panoptic_<split>.json`; pixels stay on disk until they are asked for."""
    file = panoptic_file(root, split)
    if not file.is_file():
        raise InputError(f"{root} has no split {split!r}: {file} is missing")
    raw = read_json(file)
    try:
        categories = {
            c["id"]: Category(c["id"], c["name"], bool(c["isthing"]), tuple(c.get("synonyms", ())))
            for c in raw["categories"]
        }
        annotations = {a["image_id"]: a for a in raw["annotations"]}
        photos, pngs = folders(root, split)
        images = tuple(
            _image(image, annotations[image["id"]], photos, pngs)
            for image in raw["images"]
            if image["id"] in annotations
        )
        unannotated = tuple(i["id"] for i in raw["images"] if i["id"] not in annotations)
    except KeyError as error:
        raise InputError(f"{file} is not a COCO panoptic file: an entry has no {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file} is not a COCO panoptic file ({error})") from error
    return Panoptic(root, split, categories, images, unannotated)


def _image(
    image: Mapping[str, Any], annotation: Mapping[str, Any], photos: Path, pngs: Path
) -> PanopticImage:
    return PanopticImage(
        int(image["id"]),
        photos / image["file_name"],
        pngs / annotation["file_name"],
        int(image["height"]),
        int(image["width"]),
        tuple(_segment(s) for s in annotation["segments_info"]),
    )


def _segment(raw: Mapping[str, Any]) -> Segment:
    if not 0 < int(raw["id"]) <= BORDER:
        raise ValueError(f"segment id {raw['id']} is not a colour between 1 and {BORDER}")
    x, y, w, h = (int(v) for v in raw["bbox"])
    crowd = bool(raw.get("iscrowd", 0))
    return Segment(
        int(raw["id"]), raw["category_id"], int(raw["area"]), (x, y, w, h), crowd, raw.get("score")
    )
