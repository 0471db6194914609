"""The result: a mask, a score and a box for every phrase, in forms that other tools read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as coco_mask

from ppmn.errors import InputError
from ppmn.grounding.maps import MapGeometry, Measured
from ppmn.phrases.rules import Phrase
from ppmn.types import Box, Map

MOST_DENSE = 2_000_000_000  # bytes of dense masks that are made at once


@dataclass(frozen=True)
class Round:
    """One round of the network: the map of every phrase, and the pixels that the next round looked at."""

    maps: NDArray[np.float32]  # (P, H, W), probabilities at the network's stride
    pixels: tuple[NDArray[np.float32], ...] = ()  # of each phrase (n, 2): x, y in the photo; none at the end


@dataclass(frozen=True, eq=False)
class PhrasePrediction:
    """A phrase and where it is; everything of the photo's size is made when it is asked for."""

    phrase: Phrase
    map: Map = field(repr=False)  # (H, W), probabilities at the network's stride
    frame: MapGeometry = field(repr=False)
    threshold: float

    @property
    def text(self) -> str:
        return self.phrase.text

    @property
    def span(self) -> tuple[int, int]:
        """Where the phrase stands in the caption."""
        return self.phrase.start, self.phrase.end

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Where the response passes the threshold, (height, width) of the photo."""
        return self.frame.mask(self.map, self.threshold)

    @property
    def response(self) -> Map:
        """Probability of every pixel of the photo, (height, width)."""
        return self.frame.response(self.map)

    @cached_property
    def measured(self) -> Measured:
        return self.frame.measure(self.map, self.threshold)

    @property
    def score(self) -> float:
        """Mean response inside the mask; 0 where the mask is empty."""
        return self.measured.score

    @property
    def area(self) -> int:
        """Pixels of the mask."""
        return self.measured.area

    @property
    def box(self) -> Box | None:
        """The tight box (x, y, width, height) of the mask; None where it is empty."""
        return self.measured.box

    def rle(self) -> dict[str, Any]:
        """The mask in COCO's run-length form, ready for JSON."""
        encoded = coco_mask.encode(np.asfortranarray(self.mask.view(np.uint8)))
        return {"size": list(encoded["size"]), "counts": encoded["counts"].decode("ascii")}


@dataclass(frozen=True, eq=False)
class Grounding:
    """A caption on a photo; iterate it for its phrases."""

    image: Image.Image = field(repr=False)  # upright, RGB
    caption: str
    phrases: tuple[PhrasePrediction, ...]
    threshold: float
    skipped: tuple[Phrase, ...] = ()  # phrases that name no object
    rounds: tuple[Round, ...] = field(default=(), repr=False)  # H^0 .. H^L, where they were asked for
    image_name: str | None = None
    model: str = ""

    def __len__(self) -> int:
        return len(self.phrases)

    def __iter__(self) -> Iterator[PhrasePrediction]:
        return iter(self.phrases)

    def __getitem__(self, index: int) -> PhrasePrediction:
        return self.phrases[index]

    def panoptic(self) -> NDArray[np.int32]:
        """Each pixel to the phrase that responds most, 1, 2, ... in order; 0 is void. Overlaps are lost."""
        best = np.zeros((self.image.height, self.image.width), np.float32)
        ids = np.zeros(best.shape, np.int32)
        for number, phrase in enumerate(self.phrases, 1):
            for where, values in phrase.frame.bands(phrase.map, self.threshold):
                wins = (values > self.threshold) & (values > best[where])
                best[where][wins] = values[wins]
                ids[where][wins] = number
        return ids

    def to_coco(self, image_id: int = 1, masks: bool = True) -> dict[str, Any]:
        """A COCO annotation file of one image; masks in run-length form, or boxes alone."""
        categories = self._categories()
        annotations = []
        for number, phrase in enumerate(self.phrases, 1):
            annotation = {
                "id": number,
                "image_id": image_id,
                "category_id": categories[phrase.text.lower()],
                "bbox": list(phrase.box or (0, 0, 0, 0)),
                "area": phrase.area,
                "iscrowd": 0,
                "score": round(phrase.score, 4),
                "text": phrase.text,
                "span": list(phrase.span),
                "head": phrase.phrase.head,
                "plural": phrase.phrase.plural,
            }
            annotations.append(annotation | ({"segmentation": phrase.rle()} if masks else {}))
        return {
            "info": {"description": "panoptic narrative grounding", "model": self.model}
            | {"threshold": self.threshold, "skipped": [p.text for p in self.skipped]},
            "images": [self._image(image_id)],
            "annotations": annotations,
            "categories": [{"id": id, "name": name} for name, id in categories.items()],
        }

    def to_panoptic(self, image_id: int = 1) -> tuple[Image.Image, dict[str, Any]]:
        """A COCO panoptic PNG (id = R + 256 G + 65536 B) and its annotation file; see `panoptic`."""
        ids, categories = self.panoptic(), self._categories()
        segments = []
        for number, phrase in enumerate(self.phrases, 1):
            if phrase.box is None:
                continue
            x, y, width, height = phrase.box
            own = ids[y : y + height, x : x + width] == number
            if not own.any():
                continue
            (top, bottom), (left, right) = (
                np.flatnonzero(own.any(axis))[[0, -1]].tolist() for axis in (1, 0)
            )
            segments.append(
                {
                    "id": number,
                    "category_id": categories[phrase.text.lower()],
                    "area": int(np.count_nonzero(own)),
                    "bbox": [x + left, y + top, right - left + 1, bottom - top + 1],
                    "iscrowd": 0,
                    "score": round(phrase.score, 4),
                    "text": phrase.text,
                    "span": list(phrase.span),
                }
            )
        annotation = {"image_id": image_id, "file_name": "panoptic.png", "segments_info": segments}
        return Image.fromarray(_as_colour(ids)), {
            "images": [self._image(image_id)],
            "annotations": [annotation],
            "categories": [{"id": id, "name": name, "isthing": 1} for name, id in categories.items()],
        }

    def to_supervision(self) -> Any:
        """`supervision.Detections` of the phrases with a mask; `class_name` holds their texts."""
        try:
            import supervision
        except ImportError as error:
            raise InputError("supervision is not installed: pip install 'ppmn[supervision]'") from error
        found = [p for p in self.phrases if p.area]
        size = len(found) * self.image.width * self.image.height
        if size > MOST_DENSE:
            raise InputError(
                f"{len(found)} dense masks of {self.image.width} x {self.image.height} would take "
                f"{size / 1e9:.1f} GB, more than {MOST_DENSE / 1e9:.0f}: use to_coco()"
            )
        if not found:
            return supervision.Detections.empty()
        boxes = np.array([p.box for p in found], np.float32)
        boxes[:, 2:] += boxes[:, :2]
        categories = self._categories()
        return supervision.Detections(
            xyxy=boxes,
            mask=np.stack([p.mask for p in found]),
            confidence=np.array([p.score for p in found], np.float32),
            class_id=np.array([categories[p.text.lower()] for p in found]),
            data={"class_name": np.array([p.text for p in found]), "span": np.array([p.span for p in found])},
        )

    def overlay(self, side: int | None = None, boxes: bool = False) -> Image.Image:
        """The photo with masks (or boxes) in the phrases' colours; `side` limits its longer side."""
        from ppmn.grounding.render import overlay

        return overlay(self, side, boxes)

    def figure(self) -> Image.Image:
        """The paper's Figure 5: a row a phrase, the pixels of each round, and the mask."""
        from ppmn.grounding.render import figure

        return figure(self)

    def page(self) -> str:
        """One HTML page that needs nothing else: hover a phrase to see its mask."""
        from ppmn.grounding.page import page

        return page(self)

    def save(
        self, folder: str | Path, formats: Sequence[str] = ("json", "png", "html"), boxes: bool = False
    ) -> list[Path]:
        """Write `json`, `png`, `panoptic`, `html` or `rounds` to a folder; returns the files."""
        from ppmn.grounding.formats import save

        return save(self, Path(folder), formats, boxes)

    def _categories(self) -> dict[str, int]:
        """Phrases of the same words are of one category."""
        texts = dict.fromkeys(phrase.text.lower() for phrase in self.phrases)
        return {text: number for number, text in enumerate(texts, 1)}

    def _image(self, image_id: int) -> dict[str, Any]:
        return {
            "id": image_id,
            "file_name": Path(self.image_name or "image").name,
            "width": self.image.width,
            "height": self.image.height,
            "caption": self.caption,
        }


def _as_colour(ids: NDArray[np.int32]) -> NDArray[np.uint8]:
    return np.stack([(ids >> shift & 255).astype(np.uint8) for shift in (0, 8, 16)], -1)
