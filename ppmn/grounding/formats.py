"""A grounding as files in a folder, in every format, and as detections of the supervision library."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ppmn.errors import InputError
from ppmn.files import make_folder, replacing
from ppmn.grounding.annotation_tools import label_config, to_cvat, to_label_studio, to_labelme, to_yolo
from ppmn.grounding.coco import category_ids, image_file_name, to_coco, to_panoptic
from ppmn.grounding.contact_sheet import contact_sheet
from ppmn.grounding.page import to_html
from ppmn.grounding.render import check_rounds, cut_out, overlay, rounds_figure
from ppmn.grounding.result import Grounding

_NUMBERED = re.compile(r"[0-9]{3,}_[a-z0-9-]+\.png")  # the file of a phrase
_MAX_DENSE_BYTES = 2_000_000_000  # of dense masks in memory


def save(
    grounding: Grounding,
    folder: str | Path,
    *,
    formats: Sequence[str] = ("json", "png", "html"),
    boxes: bool = False,
    instances: bool = False,
) -> list[Path]:
    """Write a grounding to a folder.

    Args:
        grounding: What `Grounder.ground` returns.
        folder: Where to write; it is made if it is missing.
        formats: Any of "json" (COCO, grounding.json), "png" (overlay.png and a folder of masks),
            "panoptic" (panoptic.png and panoptic.json), "html" (page.html), "rounds" (rounds.png),
            "polygons" (COCO, polygons.json), "yolo" (a folder), "labelme" (labelme.json), "labelstudio"
            (labelstudio.json and labelstudio.xml), "cvat" (cvat.xml), "cutouts" (a folder of PNG files) and
            "contact" (contact.png).
        boxes: Write boxes instead of masks to the "json" and "png" formats.
        instances: Write one annotation for each object to the "json" and "polygons" formats.

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
        if name == "json":
            coco = to_coco(grounding, masks=not boxes, instances=instances)
            files.append(_write_json(coco, folder / "grounding.json"))
        elif name == "polygons":
            coco = to_coco(grounding, polygons=True, instances=instances)
            files.append(_write_json(coco, folder / "polygons.json"))
        elif name == "png":
            files += _write_masks(grounding, folder, boxes)
        else:
            files += _WRITERS[name](grounding, folder)
    return files


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
    categories = category_ids(grounding)
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


def _write_masks(grounding: Grounding, folder: Path, boxes: bool) -> list[Path]:
    files = [_write_png(overlay(grounding, boxes=boxes), folder / "overlay.png")]
    _remove_numbered(folder / "masks")
    if boxes:
        return files
    make_folder(folder / "masks")
    for number, phrase in enumerate(grounding, 1):
        mask = Image.fromarray(phrase.mask)  # one bit per pixel
        files.append(_write_png(mask, folder / "masks" / f"{number:03d}_{slug(phrase.text)}.png"))
    return files


def _remove_numbered(folder: Path) -> None:
    """Remove what was written for the phrases of an earlier caption; other files stay."""
    for file in folder.glob("*.png"):
        if _NUMBERED.fullmatch(file.name):
            file.unlink()


def _write_png(image: Image.Image, file: Path) -> Path:
    with replacing(file) as part:
        image.save(part, format="png", compress_level=1 if image.width * image.height > 1e7 else 6)
    return file


def _write_json(content: Any, file: Path) -> Path:
    return _write_text(json.dumps(content, ensure_ascii=False), file)


def _write_text(text: str, file: Path) -> Path:
    with replacing(file) as part:
        part.write_text(text, encoding="utf-8", errors="replace")  # a caption may hold lone surrogates
    return file


def _write_panoptic(grounding: Grounding, folder: Path) -> list[Path]:
    png, annotation = to_panoptic(grounding)
    return [_write_png(png, folder / "panoptic.png"), _write_json(annotation, folder / "panoptic.json")]


def _write_html(grounding: Grounding, folder: Path) -> list[Path]:
    return [_write_text(to_html(grounding), folder / "page.html")]


def _write_rounds(grounding: Grounding, folder: Path) -> list[Path]:
    return [_write_png(rounds_figure(grounding), folder / "rounds.png")]


def _write_yolo(grounding: Grounding, folder: Path) -> list[Path]:
    """Labels as YOLO expects them beside a folder of images, and the names of the classes."""
    table = {"path": ".", "train": "images", "val": "images", "names": list(category_ids(grounding))}
    labels = Path(image_file_name(grounding)).with_suffix(".txt").name
    return [
        _write_text(to_yolo(grounding), folder / "yolo" / "labels" / labels),
        _write_json(table, folder / "yolo" / "data.yaml"),  # JSON is YAML
    ]


def _write_labelme(grounding: Grounding, folder: Path) -> list[Path]:
    return [_write_json(to_labelme(grounding), folder / "labelme.json")]


def _write_label_studio(grounding: Grounding, folder: Path) -> list[Path]:
    return [
        _write_json([to_label_studio(grounding)], folder / "labelstudio.json"),
        _write_text(label_config(grounding), folder / "labelstudio.xml"),
    ]


def _write_cvat(grounding: Grounding, folder: Path) -> list[Path]:
    return [_write_text(to_cvat(grounding), folder / "cvat.xml")]


def _write_cutouts(grounding: Grounding, folder: Path) -> list[Path]:
    files = []
    _remove_numbered(folder / "cutouts")
    for number, phrase in enumerate(grounding, 1):
        piece = cut_out(grounding.image, phrase)
        if piece is not None:
            files.append(_write_png(piece, folder / "cutouts" / f"{number:03d}_{slug(phrase.text)}.png"))
    return files


def _write_contact(grounding: Grounding, folder: Path) -> list[Path]:
    return [_write_png(contact_sheet(grounding), folder / "contact.png")]


_WRITERS: dict[str, Callable[[Grounding, Path], list[Path]]] = {
    "panoptic": _write_panoptic,
    "html": _write_html,
    "rounds": _write_rounds,
    "yolo": _write_yolo,
    "labelme": _write_labelme,
    "labelstudio": _write_label_studio,
    "cvat": _write_cvat,
    "cutouts": _write_cutouts,
    "contact": _write_contact,
}
OUTPUT_FORMATS = ("json", "png", "polygons", *_WRITERS)
