"""Write a grounding to a folder."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from ppmn.errors import InputError
from ppmn.files import replacing
from ppmn.grounding.result import Grounding

FORMATS = ("json", "png", "panoptic", "html", "rounds")


def check_formats(formats: Sequence[str]) -> None:
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        wrong = ", ".join(unknown) or "nothing"
        raise InputError(f"the format {wrong} is not known; there are {', '.join(FORMATS)}")


def save(grounding: Grounding, folder: Path, formats: Sequence[str], boxes: bool) -> list[Path]:
    """The files, in the order they were written."""
    check_formats(formats)
    if "rounds" in formats and not grounding.rounds:
        raise InputError("the rounds were not kept: ground with rounds=True")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror})") from error
    writers: dict[str, Callable[[], list[Path]]] = {
        "json": lambda: [_json(grounding.to_coco(masks=not boxes), folder / "grounding.json")],
        "png": lambda: _pictures(grounding, folder, boxes),
        "panoptic": lambda: _panoptic(grounding, folder),
        "html": lambda: [_text(grounding.page(), folder / "page.html")],
        "rounds": lambda: [_png(grounding.figure(), folder / "rounds.png")],
    }
    return [file for name in dict.fromkeys(formats) for file in writers[name]()]


def slug(text: str) -> str:
    """Words as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "phrase"


def _pictures(grounding: Grounding, folder: Path, boxes: bool) -> list[Path]:
    files = [_png(grounding.overlay(boxes=boxes), folder / "overlay.png")]
    if boxes:
        return files
    (folder / "masks").mkdir(exist_ok=True)
    for number, phrase in enumerate(grounding, 1):
        mask = Image.fromarray(phrase.mask)  # one bit a pixel
        files.append(_png(mask, folder / "masks" / f"{number:03d}_{slug(phrase.text)}.png"))
    return files


def _panoptic(grounding: Grounding, folder: Path) -> list[Path]:
    picture, annotation = grounding.to_panoptic()
    return [_png(picture, folder / "panoptic.png"), _json(annotation, folder / "panoptic.json")]


def _png(picture: Image.Image, file: Path) -> Path:
    with replacing(file) as part:
        picture.save(part, format="png", compress_level=1 if picture.width * picture.height > 1e7 else 6)
    return file


def _json(content: dict[str, Any], file: Path) -> Path:
    return _text(json.dumps(content, ensure_ascii=False), file)


def _text(text: str, file: Path) -> Path:
    with replacing(file) as part:
        part.write_text(text, encoding="utf-8", errors="replace")  # a caption may hold lone surrogates
    return file
