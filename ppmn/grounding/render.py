"""Pictures of a grounding: masks over the photo, and the paper's Figure 5."""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from ppmn.errors import InputError
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.result import Grounding, PhrasePrediction

# Okabe and Ito's palette for all kinds of colour vision, and three of Paul Tol's muted ones.
PALETTE = (
    *("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7", "#0072B2"),
    *("#44AA99", "#AA4466", "#999933"),
)
OPACITY = 0.45
TILE, MARGIN, LINE, ROWS = (
    260,
    8,
    24,
    20,
)  # of the figure: a tile's longer side, space, a line of text, phrases


def colour(number: int) -> tuple[int, int, int]:
    """The colour of a phrase, by its place in the caption."""
    code = PALETTE[number % len(PALETTE)]
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


def overlay(
    grounding: Grounding,
    side: int | None = None,
    boxes: bool = False,
    opacity: float = OPACITY,
    outline: bool = True,
) -> Image.Image:
    """Large masks below small ones, each outlined and with its number and words where it responds most."""
    photo = reduced(grounding.image, side)
    frames = [p.frame.resized(photo.height, photo.width) for p in grounding]
    canvas = np.array(photo)
    order = sorted(range(len(grounding)), key=lambda n: -int((grounding[n].map > grounding.threshold).sum()))
    for number in [] if boxes else order:
        paint(canvas, grounding[number], frames[number], colour(number), opacity, outline)
    picture = Image.fromarray(canvas)
    size = max(11, min(photo.size) // 32)
    taken: list[tuple[int, int, int, int]] = []
    for number in order:
        phrase, frame = grounding[number], frames[number]
        box = frame.measure(phrase.map, phrase.threshold).box
        if box is None:
            continue
        if boxes:
            x, y, width, height = box
            edges = (x, y, x + width - 1, y + height - 1)
            ImageDraw.Draw(picture).rectangle(edges, outline=colour(number), width=max(2, size // 6))
        at = box[:2] if boxes else peak(phrase, frame)
        label(picture, at, f"{number + 1} {phrase.text}", colour(number), size, taken)
    return picture


def reduced(photo: Image.Image, side: int | None) -> Image.Image:
    """The photo with its longer side at most `side`."""
    if side is None or max(photo.size) <= side:
        return photo
    scale = side / max(photo.size)
    width, height = (max(1, round(length * scale)) for length in photo.size)
    return photo.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)


def paint(
    canvas: NDArray[np.uint8],
    phrase: PhrasePrediction,
    frame: MapGeometry,
    rgb: tuple[int, int, int],
    opacity: float = OPACITY,
    outline: bool = True,
) -> None:
    """Tint a mask and draw its outline."""
    mask = frame.mask(phrase.map, phrase.threshold)
    thick = max(1, round(max(mask.shape) / 500))
    inner = np.zeros_like(mask)
    inner[thick:-thick, thick:-thick] = (
        mask[2 * thick :, thick:-thick]
        & mask[: -2 * thick, thick:-thick]
        & mask[thick:-thick, 2 * thick :]
        & mask[thick:-thick, : -2 * thick]
    )
    for row in np.flatnonzero(mask.any(1)):
        within, inside = canvas[row], mask[row]
        within[inside] = (within[inside] * (1 - opacity) + np.array(rgb) * opacity).astype(np.uint8)
        if outline:
            within[inside & ~inner[row]] = rgb


def peak(phrase: PhrasePrediction, frame: MapGeometry) -> tuple[int, int]:
    """A pixel well inside the mask: where the response is high all around."""
    rows, columns = (max(1, math.floor(c)) for c in frame.content_size)
    response = phrase.map[:rows, :columns]
    around = Image.fromarray(np.rint(response * 255).astype(np.uint8)).filter(
        ImageFilter.BoxBlur(min(rows, columns) / 10)
    )
    inside = np.where(response > phrase.threshold, np.asarray(around).astype(int), -1)
    y, x = divmod(int(np.argmax(inside)), columns)
    ((x, y),) = frame.points(np.array([y * frame.map_size[1] + x]), frame.map_size[1])
    return int(x), int(y)


def label(
    picture: Image.Image,
    at: tuple[int, int],
    text: str,
    rgb: tuple[int, int, int],
    size: int,
    taken: list[tuple[int, int, int, int]],
) -> None:
    """Words on a dark plate with a coloured edge, inside the picture and below those already there."""
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size)
    text = text if len(text) <= 28 else f"{text[:27]}…"
    left, top, right, bottom = (round(edge) for edge in draw.textbbox((0, 0), text, font=font))
    pad = size // 3
    width, height = right - left + 2 * pad, bottom - top + 2 * pad
    x = min(max(at[0] - width // 2, 0), max(picture.width - width, 0))
    y = min(max(at[1] - height // 2, 0), max(picture.height - height, 0))
    for _ in taken:
        for u, v, right_of, below in taken:
            if x < right_of and u < x + width and y < below and v < y + height:
                y = below if below + height <= picture.height else y
    taken.append((x, y, x + width, y + height))
    draw.rectangle((x, y, x + width, y + height), fill=(20, 20, 20), outline=rgb, width=max(1, size // 8))
    draw.text((x + pad - left, y + pad - top), text, fill="white", font=font)


def figure(grounding: Grounding) -> Image.Image:
    """A row a phrase: the photo, the response and the pixels of each round, and the mask."""
    if not grounding.rounds:
        raise InputError("the rounds were not kept: ground with rounds=True")
    thumb = reduced(grounding.image, TILE)
    rows = min(len(grounding), ROWS)
    columns = len(grounding.rounds) + 2
    width, height = thumb.width + MARGIN, thumb.height + LINE + MARGIN
    sheet = Image.new("RGB", (columns * width + MARGIN, rows * height + LINE + MARGIN), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for number in range(rows):
        top = MARGIN + number * height
        draw.text((MARGIN, top), f"{number + 1} {grounding[number].text}", fill="black", font=font)
        for column, tile in enumerate(_tiles(grounding, number, thumb)):
            sheet.paste(tile, (MARGIN + column * width, top + LINE))
            name = "" if column == 0 else "mask" if column == columns - 1 else f"H{column - 1}"
            draw.text((MARGIN + column * width + thumb.width, top), name, "grey", font, anchor="ra")
    more = f"and {len(grounding) - rows} phrases more" if len(grounding) > rows else ""
    draw.text((MARGIN, rows * height + MARGIN), more, fill="black", font=font)
    return sheet


def _tiles(grounding: Grounding, number: int, thumb: Image.Image) -> list[Image.Image]:
    phrase, rgb = grounding[number], colour(number)
    frame = phrase.frame.resized(thumb.height, thumb.width)
    tiles = [thumb]
    scale = thumb.width / grounding.image.width
    for step in grounding.rounds:
        heat = frame.response(step.maps[number])[..., None]
        grey = np.asarray(thumb.convert("L"))[..., None] * 0.5
        tile = Image.fromarray((grey * (1 - heat) + np.array(rgb) * heat).astype(np.uint8))
        draw = ImageDraw.Draw(tile)
        for x, y in (step.pixels[number] * scale).tolist() if step.pixels else []:
            draw.ellipse((x - 1.5, y - 1.5, x + 1.5, y + 1.5), fill="white", outline="black")
        tiles.append(tile)
    canvas = np.array(thumb)
    paint(canvas, phrase, frame, rgb)
    return [*tiles, Image.fromarray(canvas)]
