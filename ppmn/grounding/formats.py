"""A grounding in formats that other tools read: COCO, COCO panoptic, supervision, and files in a folder."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ppmn.errors import InputError
from ppmn.files import make_folder, replacing
from ppmn.grounding.page import to_html
from ppmn.grounding.render import check_rounds, overlay, rounds_figure
from ppmn.grounding.result import Grounding
from ppmn.images import encode_rle, ids_to_rgb
from ppmn.types import SegmentIds

OUTPUT_FORMATS = ("json", "png", "panoptic", "html", "rounds")
_MAX_DENSE_BYTES = 2_000_000_000  # of dense masks in memory


def save(
    grounding: Grounding,
    folder: str | Path,
    *,
    formats: Sequence[str] = ("json", "png", "html"),
    boxes: bool = False,
) -> list[Path]:
    """Write a grounding to a folder.

    Args:
        grounding: What `Grounder.ground` returns.
        folder: Where to write; it is made if it is missing.
        formats: Any of "json" (COCO, grounding.json), "png" (overlay.png and a folder of masks),
            "panoptic" (panoptic.png and panoptic.json), "html" (page.html) and "rounds" (rounds.png).
        boxes: Write boxes instead of masks to the "json" and "png" formats.

    Returns:
        The files, in the order they were written.

    Raises:
        InputError: A format is unknown, "rounds" is asked for but the rounds were not kept, or a file cannot
            be written.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "a dog and a cat")
        >>> [file.name for file in ppmn.save(grounding, "out", formats=["json", "html"])]
        ['grounding.json', 'page.html']
    """
    check_formats(formats)
    if "rounds" in formats:
        check_rounds(grounding)
    folder = make_folder(Path(folder))
    files: list[Path] = []
    for name in dict.fromkeys(formats):
        match name:
            case "json":
                files.append(_write_json(to_coco(grounding, masks=not boxes), folder / "grounding.json"))
            case "png":
                files += _write_masks(grounding, folder, boxes)
            case "panoptic":
                png, annotation = to_panoptic(grounding)
                files.append(_write_png(png, folder / "panoptic.png"))
                files.append(_write_json(annotation, folder / "panoptic.json"))
            case "html":
                files.append(_write_text(to_html(grounding), folder / "page.html"))
            case "rounds":
                files.append(_write_png(rounds_figure(grounding), folder / "rounds.png"))
    return files


def to_coco(grounding: Grounding, *, image_id: int = 1, masks: bool = True) -> dict[str, Any]:
    """A COCO annotation file of one image; phrases of the same words are one category.

    Args:
        grounding: What `Grounder.ground` returns.
        image_id: The id of the image in the file.
        masks: Add each mask as compressed RLE; False leaves boxes only.

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
    categories = _categories(grounding)
    annotations = []
    for number, phrase in enumerate(grounding, 1):
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
        if masks:
            annotation["segmentation"] = encode_rle(phrase.mask)
        annotations.append(annotation)
    info = {
        "description": "panoptic narrative grounding",
        "model": grounding.model,
        "threshold": grounding.threshold,
        "skipped": [phrase.text for phrase in grounding.skipped],
        "warnings": list(grounding.warnings),
    }
    return {
        "info": info,
        "images": [_image_entry(grounding, image_id)],
        "annotations": annotations,
        "categories": [{"id": id, "name": name} for name, id in categories.items()],
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
    ids, categories = panoptic_ids(grounding), _categories(grounding)
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
        for where, values in phrase.geometry.bands(phrase.map, grounding.threshold):
            wins = (values > grounding.threshold) & (values > best[where])
            best[where][wins] = values[wins]
            ids[where][wins] = number
    return ids


def to_supervision(grounding: Grounding) -> Any:
    """Detections for the supervision library (`pip install 'ppmn[supervision]'`).

    Args:
        grounding: What `Grounder.ground` returns.

    Returns:
        A `supervision.Detections` of the phrases whose mask is not empty; `data["class_name"]` holds their
        texts and `data["span"]` their spans.

    Raises:
        InputError: supervision is not installed, or the dense masks would take more than 2 GB.

    Examples:
        >>> import ppmn
        >>> grounding = ppmn.load("compact").ground("photo.jpg", "a dog and a cat")  # doctest: +SKIP
        >>> ppmn.to_supervision(grounding).data["class_name"]  # doctest: +SKIP
        array(['dog', 'cat'], dtype='<U3')
    """
    try:
        import supervision
    except ImportError as error:
        raise InputError("supervision is not installed: pip install 'ppmn[supervision]'") from error
    found = [phrase for phrase in grounding if phrase.area]
    if not found:
        return supervision.Detections.empty()
    image = grounding.image
    size = len(found) * image.width * image.height
    if size > _MAX_DENSE_BYTES:
        raise InputError(
            f"{len(found)} dense masks of {image.width} x {image.height} would take {size / 1e9:.1f} GB; "
            f"the limit is {_MAX_DENSE_BYTES / 1e9:.0f} GB: use to_coco, which compresses them"
        )
    boxes = np.array([phrase.box for phrase in found], np.float32)
    boxes[:, 2:] += boxes[:, :2]
    categories = _categories(grounding)
    return supervision.Detections(
        xyxy=boxes,
        mask=np.stack([phrase.mask for phrase in found]),
        confidence=np.array([phrase.score for phrase in found], np.float32),
        class_id=np.array([categories[phrase.text.lower()] for phrase in found]),
        data={
            "class_name": np.array([phrase.text for phrase in found]),
            "span": np.array([phrase.span for phrase in found]),
        },
    )


def check_formats(formats: Sequence[str]) -> None:
    """Refuse formats that `save` does not know."""
    unknown = [name for name in formats if name not in OUTPUT_FORMATS]
    if unknown or not formats:
        wrong = ", ".join(unknown) or "nothing"
        raise InputError(f"the format {wrong} is not known; there are {', '.join(OUTPUT_FORMATS)}")


def slug(text: str) -> str:
    """Words as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "phrase"


def _categories(grounding: Grounding) -> dict[str, int]:
    texts = dict.fromkeys(phrase.text.lower() for phrase in grounding)
    return {text: number for number, text in enumerate(texts, 1)}


def _image_entry(grounding: Grounding, image_id: int) -> dict[str, Any]:
    return {
        "id": image_id,
        "file_name": Path(grounding.image_name or "image").name,
        "width": grounding.image.width,
        "height": grounding.image.height,
        "caption": grounding.caption,
    }


def _write_masks(grounding: Grounding, folder: Path, boxes: bool) -> list[Path]:
    files = [_write_png(overlay(grounding, boxes=boxes), folder / "overlay.png")]
    if boxes:
        return files
    (folder / "masks").mkdir(exist_ok=True)
    for number, phrase in enumerate(grounding, 1):
        mask = Image.fromarray(phrase.mask)  # one bit per pixel
        files.append(_write_png(mask, folder / "masks" / f"{number:03d}_{slug(phrase.text)}.png"))
    return files


def _write_png(image: Image.Image, file: Path) -> Path:
    with replacing(file) as part:
        image.save(part, format="png", compress_level=1 if image.width * image.height > 1e7 else 6)
    return file


def _write_json(content: dict[str, Any], file: Path) -> Path:
    return _write_text(json.dumps(content, ensure_ascii=False), file)


def _write_text(text: str, file: Path) -> Path:
    with replacing(file) as part:
        part.write_text(text, encoding="utf-8", errors="replace")  # a caption may hold lone surrogates
    return file
