"""Groundings whose maps are known."""

import numpy as np
from PIL import Image, ImageDraw

from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.result import Grounding, PhrasePrediction
from ppmn.phrases.rules import find_phrases, parse_brackets

CAPTION = "In this image there are two dogs on the green grass, and a red ball under the blue sky."


def picture(width: int = 90, height: int = 60) -> Image.Image:
    image = Image.new("RGB", (width, height), "skyblue")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, height // 2, width, height), fill="forestgreen")
    draw.ellipse((width // 3, height // 3, 2 * width // 3, 2 * height // 3), fill="firebrick")
    return image


def drawn(caption: str = CAPTION, width: int = 90, height: int = 60, threshold: float = 0.5) -> Grounding:
    """A grounding with known maps."""
    geometry = MapGeometry(height, width, (8, 12), (7.5, 11.25))
    caption, marked = parse_brackets(caption)
    found = [p for p in find_phrases(caption, spans=marked) if not p.abstract]
    y, x = np.mgrid[:8, :12]
    maps = [
        np.exp(-((x - 2 - 2 * n) ** 2 + (y - 3) ** 2) / (4 + n)).astype(np.float32)
        for n, _ in enumerate(found)
    ]
    answers = tuple(PhrasePrediction(p, m, geometry, threshold) for p, m in zip(found, maps, strict=True))
    return Grounding(picture(width, height), caption, answers, threshold, image_name="photo.png")
