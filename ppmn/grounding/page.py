"""One self-contained HTML page of a grounding: `page.html` with the photo, the maps and the caption in it."""

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from ppmn.grounding.render import color, label_point, shrink
from ppmn.grounding.result import Grounding

SIDE = 1024  # longer side of the photo in the page


def to_html(grounding: Grounding) -> str:
    """The page; what a user wrote is in it as data and as escaped text only."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = json.dumps(_data(grounding), ensure_ascii=True)
    for character in "<>&":  # so that no caption can end the script that holds it
        data = data.replace(character, f"\\u{ord(character):04x}")
    title = grounding.caption if len(grounding.caption) <= 80 else f"{grounding.caption[:79]}…"
    parts = {"__TITLE__": html.escape(title), "__CAPTION__": html.escape(grounding.caption), "__DATA__": data}
    pieces = [template]
    for name, text in parts.items():  # only the template's own marks, not the same words in a caption
        before, after = pieces.pop().split(name)
        pieces += [before, text, after]
    return "".join(pieces)


def _data(grounding: Grounding) -> dict[str, Any]:
    photo = shrink(grounding.image, SIDE)
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=88)
    geometry = grounding[0].geometry
    return {
        "caption": grounding.caption,
        "photo": f"data:image/jpeg;base64,{_base64(buffer.getvalue())}",
        "width": photo.width,
        "height": photo.height,
        "threshold": grounding.threshold,
        "grid": geometry.map_size,
        "covered": geometry.content_size,
        "phrases": [_phrase(grounding, number) for number in range(len(grounding))],
    }


def _phrase(grounding: Grounding, number: int) -> dict[str, Any]:
    phrase, (r, g, b) = grounding[number], color(number)
    x, y = label_point(phrase, phrase.geometry)
    return {
        "text": phrase.text,
        "span": phrase.span,
        "score": round(phrase.score, 4),
        "area": phrase.area,
        "share": phrase.area / (phrase.geometry.width * phrase.geometry.height),
        "peak": [x / phrase.geometry.width, y / phrase.geometry.height],
        "map": _base64(np.rint(phrase.map * 255).astype(np.uint8).tobytes()),
        "rgb": [r, g, b],
        "ink": "#000" if 0.299 * r + 0.587 * g + 0.114 * b > 120 else "#fff",
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
