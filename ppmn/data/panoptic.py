"""COCO panoptic annotations: one JSON of segments, one PNG of segment ids a photo."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ppmn.errors import InputError

VOID = 0  # unlabelled
BORDER = 16_777_215  # white in the PNG: neither in nor out


@dataclass(frozen=True)
class Category:
    """One category of a source; `synonyms` are other names the source itself gives it."""

    id: int
    name: str
    isthing: bool
    synonyms: tuple[str, ...] = ()


@dataclass(frozen=True)
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
    """One photo with its segments; `photo` and `segmentation` are files."""

    id: int
    photo: Path
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


def read_ids(file: Path) -> NDArray[np.int32]:
    """Segment id of every pixel: R + 256 G + 65536 B."""
    try:
        with Image.open(file) as png:
            rgb = np.asarray(png.convert("RGB"), dtype=np.int32)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{file} is not a readable panoptic PNG ({error})") from error
    return rgb[..., 0] + 256 * rgb[..., 1] + 65_536 * rgb[..., 2]


def read_photo(file: Path) -> Image.Image:
    """The photo upright (EXIF orientation applied) in RGB."""
    try:
        with Image.open(file) as photo:
            return ImageOps.exif_transpose(photo).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{file} is not a readable photo ({error})") from error


def read_panoptic(root: Path, split: str) -> Panoptic:
    """Read `annotations/panoptic_<split>.json`; pixels stay on disk until they are asked for."""
    file = root / "annotations" / f"panoptic_{split}.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{root} has no split {split!r}: {file} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not JSON ({error})") from error
    categories = {
        c["id"]: Category(c["id"], c["name"], bool(c["isthing"]), tuple(c.get("synonyms", ())))
        for c in raw["categories"]
    }
    annotations = {a["image_id"]: a for a in raw["annotations"]}
    images = []
    for image in raw["images"]:
        annotation = annotations.get(image["id"])
        if annotation is None:
            continue
        segments = tuple(
            Segment(
                s["id"],
                s["category_id"],
                s["area"],
                tuple(s["bbox"]),
                bool(s.get("iscrowd", 0)),
                s.get("score"),
            )
            for s in annotation["segments_info"]
        )
        images.append(
            PanopticImage(
                image["id"],
                root / "images" / split / image["file_name"],
                root / "annotations" / "panoptic_segmentation" / split / annotation["file_name"],
                image["height"],
                image["width"],
                segments,
            )
        )
    return Panoptic(root, split, categories, tuple(images))
