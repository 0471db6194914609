"""A grounding as COCO annotations: run-length masks or polygons, and the panoptic form."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ppmn.grounding.polygons import mask_polygons
from ppmn.grounding.result import Grounding, MaskedMap, PhrasePrediction
from ppmn.images import encode_rle, ids_to_rgb
from ppmn.types import SegmentIds


def to_coco(
    grounding: Grounding,
    *,
    image_id: int = 1,
    masks: bool = True,
    polygons: bool = False,
    instances: bool = False,
) -> dict[str, Any]:
    """A COCO annotation file of one image; phrases of the same words are one category.

    Args:
        grounding: What `Grounder.ground` returns.
        image_id: The id of the image in the file.
        masks: Add each mask as compressed RLE; False leaves boxes only.
        polygons: Add each mask as polygons instead, one per connected part. A phrase whose mask is empty
            then has no annotation; `info["empty"]` lists it.
        instances: One annotation for each object that a phrase names, in place of one per phrase; `phrase`
            is then the number of the phrase, from 1. A phrase whose mask is empty has none.

    Returns:
        The content of the file, ready for `json.dump`.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "a dog and a cat")
        >>> [annotation["text"] for annotation in ppmn.to_coco(grounding)["annotations"]]
        ['dog', 'cat']
    """
    categories = category_ids(grounding)
    annotations: list[dict[str, Any]] = []
    for number, phrase in enumerate(grounding, 1):
        common = _annotation(phrase) | {"category_id": categories[phrase.text.lower()]}
        for region in phrase.instances if instances else [phrase]:
            if polygons and not region.area:
                continue
            own = _region(region) | {"id": len(annotations) + 1, "image_id": image_id}
            own |= {"phrase": number} if instances else {}
            if polygons:
                own["segmentation"] = [ring.ravel().tolist() for ring in mask_polygons(region.mask)]
            elif masks:
                own["segmentation"] = encode_rle(region.mask)
            annotations.append(common | own)
    return {
        "info": _info(grounding),
        "images": [_image_entry(grounding, image_id)],
        "annotations": annotations,
        "categories": [{"id": id, "name": name} for name, id in categories.items()],
    }


def _info(grounding: Grounding) -> dict[str, Any]:
    return {
        "description": "panoptic narrative grounding",
        "model": grounding.model,
        "threshold": grounding.threshold,
        "score": "expected IoU" if grounding.calibrated else "mean response",
        "skipped": [phrase.text for phrase in grounding.skipped],
        "warnings": list(grounding.warnings),
        "empty": [phrase.text for phrase in grounding if not phrase.area],
        "absent": [phrase.text for phrase in grounding if phrase.absent],
    }


def to_panoptic(grounding: Grounding, *, image_id: int = 1) -> tuple[Image.Image, dict[str, Any]]:
    """A COCO panoptic PNG and its annotation file; each pixel belongs to the phrase that responds most.

    Args:
        grounding: What `Grounder.ground` returns.
        image_id: The id of the image in the file.

    Returns:
        The PNG, whose colours are segment ids (R + 256 G + 65536 B), and the content of the JSON file.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "a dog and a cat")
        >>> png, annotation = ppmn.to_panoptic(grounding)
        >>> png.size, annotation["annotations"][0]["file_name"]
        ((64, 48), 'panoptic.png')
    """
    ids, categories = panoptic_ids(grounding), category_ids(grounding)
    segments = []
    for number, phrase in enumerate(grounding, 1):
        if phrase.box is None:
            continue
        x, y, width, height = phrase.box
        own = ids[y : y + height, x : x + width] == number
        if not own.any():
            continue
        top, bottom = np.flatnonzero(own.any(1))[[0, -1]].tolist()
        left, right = np.flatnonzero(own.any(0))[[0, -1]].tolist()
        segment = {
            "id": number,
            "category_id": categories[phrase.text.lower()],
            "area": int(np.count_nonzero(own)),
            "bbox": [x + left, y + top, right - left + 1, bottom - top + 1],
            "iscrowd": 0,
            "score": round(phrase.score, 4),
            "text": phrase.text,
            "span": list(phrase.span),
        }
        segments.append(segment)
    annotation = {"image_id": image_id, "file_name": "panoptic.png", "segments_info": segments}
    return Image.fromarray(ids_to_rgb(ids)), {
        "images": [_image_entry(grounding, image_id)],
        "annotations": [annotation],
        "categories": [{"id": id, "name": name, "isthing": 1} for name, id in categories.items()],
    }


def panoptic_ids(grounding: Grounding) -> SegmentIds:
    """The number (from 1) of the phrase that responds most at each pixel; 0 where no mask is."""
    best = np.zeros((grounding.image.height, grounding.image.width), np.float32)
    ids = np.zeros(best.shape, np.int32)
    for number, phrase in enumerate(grounding, 1):
        for where, values in phrase.geometry.bands(phrase.map, phrase.threshold):
            wins = (values > phrase.threshold) & (values > best[where])
            best[where][wins] = values[wins]
            ids[where][wins] = number
    return ids


def category_ids(grounding: Grounding) -> dict[str, int]:
    """The distinct texts of the phrases in lower case, numbered from 1."""
    texts = dict.fromkeys(phrase.text.lower() for phrase in grounding)
    return {text: number for number, text in enumerate(texts, 1)}


def _image_entry(grounding: Grounding, image_id: int) -> dict[str, Any]:
    return {
        "id": image_id,
        "file_name": image_file_name(grounding),
        "width": grounding.image.width,
        "height": grounding.image.height,
        "caption": grounding.caption,
    }


def image_file_name(grounding: Grounding) -> str:
    """The name of the image's file without its folder."""
    return Path(grounding.image_name or "image").name


def _annotation(phrase: PhrasePrediction) -> dict[str, Any]:
    return {
        "iscrowd": 0,
        "score": round(phrase.score, 4),
        "presence": None if phrase.presence is None else round(phrase.presence, 4),
        "absent": phrase.absent,
        "foreign": phrase.foreign,
        "count": len(phrase.instances),
        "text": phrase.text,
        "span": list(phrase.span),
        "head": phrase.phrase.head,
        "plural": phrase.phrase.plural,
    }


def _region(region: MaskedMap) -> dict[str, Any]:
    return {
        "bbox": list(region.box or (0, 0, 0, 0)),
        "area": region.area,
        "mean_response": round(region.mean_response, 4),
    }
