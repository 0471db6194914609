"""A grounding as one HTML file that works offline."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppmn.grounding.maps import encode_map
from ppmn.grounding.render import OPACITY, PALETTE, shrink
from ppmn.grounding.result import Grounding, PhrasePrediction
from ppmn.images import encode_image_file

_WEB = Path(__file__).parent / "web"
_SCRIPTS = ("maps.js", "labels.js", "saved_page.js")
_IMAGE_SIDE = 1024  # longer side of the image in the page


def to_html(grounding: Grounding, *, numbers: Sequence[int] | None = None) -> str:
    """Make an HTML page of a grounding: pointing at a phrase shows its mask.

    Args:
        grounding: What `ground` returned.
        numbers: The number of each phrase, for its label and color; None counts them from 1.

    Returns:
        The page, with the image, the maps and the scripts in it.

    Examples:
        >>> from PIL import Image
        >>> import ppmn
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "The sky above a house.")
        >>> to_html(grounding).splitlines()[0]
        '<!doctype html>'
    """
    data = json.dumps(_page_data(grounding, numbers), ensure_ascii=True)
    for character in "<>&":  # so that no caption can end the script element
        data = data.replace(character, f"\\u{ord(character):04x}")
    title = grounding.caption if len(grounding.caption) <= 80 else f"{grounding.caption[:79]}…"
    texts = {
        "__TITLE__": html.escape(title),
        "__CAPTION__": html.escape(grounding.caption),
        "__DATA__": data,
        "__SCRIPT__": "".join(_read(name) for name in _SCRIPTS),
    }
    pieces = [_read("saved_page.html")]
    for name, text in texts.items():  # in order, so that the same words in a caption are not replaced
        before, after = pieces.pop().split(name)
        pieces += [before, text, after]
    return "".join(pieces)


def _read(name: str) -> str:
    return (_WEB / name).read_text(encoding="utf-8")


def _page_data(grounding: Grounding, numbers: Sequence[int] | None) -> dict[str, Any]:
    image = shrink(grounding.image, _IMAGE_SIDE)
    jpeg = base64.b64encode(encode_image_file(image, "JPEG", quality=88)).decode("ascii")
    geometry = grounding[0].geometry
    return {
        "caption": grounding.caption,
        "image": f"data:image/jpeg;base64,{jpeg}",
        "width": image.width,
        "height": image.height,
        "calibrated": grounding.calibrated,
        "warnings": grounding.warnings,
        "map_size": geometry.map_size,
        "content_size": geometry.content_size,
        "palette": PALETTE,
        "opacity": OPACITY,
        "numbers": list(numbers or range(1, len(grounding) + 1)),
        "phrases": [_phrase_data(phrase) for phrase in grounding],
    }


def _phrase_data(phrase: PhrasePrediction) -> dict[str, Any]:
    return {
        "text": phrase.text,
        "span": phrase.span,
        "score": round(phrase.score, 4),
        "presence": phrase.presence,
        "absent": phrase.absent,
        "foreign": phrase.foreign,
        "fraction": phrase.area / (phrase.geometry.width * phrase.geometry.height),
        "threshold": phrase.threshold,
        "map": encode_map(phrase.map),
        "instances": [encode_map(instance.map) for instance in phrase.instances]
        if len(phrase.instances) > 1
        else [],
    }
