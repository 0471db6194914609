"""Pictures of a grounding: masks painted over the image, and the paper's Figure 5."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from ppmn.errors import InputError
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.result import Grounding, PhrasePrediction
from ppmn.types import Mask

RGB = tuple[int, int, int]

# Okabe and Ito's palette for all kinds of colour vision, and three of Paul Tol's muted ones.
PALETTE = (
    *("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7", "#0072B2"),
    *("#44AA99", "#AA4466", "#999933"),
)
OPACITY = 0.45
_TILE = 260  # of the figure: longer side of a picture
_MARGIN = 8
_LINE = 24  # height of a line of text
_MAX_ROWS = 20


def color(index: int) -> RGB:
    """The color of a phrase, by its place in the caption."""
    code = PALETTE[index % len(PALETTE)]
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


def overlay(
    grounding: Grounding,
    *,
    max_side: int | None = None,
    boxes: bool = False,
    opacity: float = OPACITY,
    outline: bool = True,
    numbers: Sequence[int] | None = None,
) -> Image.Image:
    """The image with the mask, number and words of each phrase in the phrase's color.

    Args:
        grounding: What `Grounder.ground` returns.
        max_side: The limit of the picture's longer side; None keeps the image's size.
        boxes: Draw boxes instead of masks.
        opacity: Of the masks, from 0 to 1.
        outline: Draw the outlines of the masks.
        numbers: The number of each phrase, for its label and color; None counts them from 1.

    Returns:
        The picture; small masks lie on top of large ones.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "a dog and a cat")
        >>> ppmn.overlay(grounding, max_side=32).size
        (32, 24)
    """
    image = shrink(grounding.image, max_side)
    geometries = [phrase.geometry.resized(image.height, image.width) for phrase in grounding]
    order = sorted(
        range(len(grounding)), key=lambda n: -int((grounding[n].map > grounding[n].threshold).sum())
    )
    numbers = numbers or range(1, len(grounding) + 1)
    colors = [color(number - 1) for number in numbers]
    if not boxes:
        masks = (geometries[n].mask(grounding[n].map, grounding[n].threshold) for n in order)
        own = [colors[n] for n in order]
        image = paint_masks(image, masks, colors=own, opacity=opacity, outline=outline)
    elif image is grounding.image:
        image = image.copy()
    font_size = max(11, min(image.size) // 32)
    taken: list[tuple[int, int, int, int]] = []
    for n in order:
        phrase, geometry = grounding[n], geometries[n]
        box = geometry.stats(phrase.map, phrase.threshold).box
        if box is None:
            continue
        if boxes:
            x, y, width, height = box
            corners = (x, y, x + width - 1, y + height - 1)
            ImageDraw.Draw(image).rectangle(corners, outline=colors[n], width=max(2, font_size // 6))
        at = box[:2] if boxes else _label_point(phrase, geometry)
        _draw_label(image, at, f"{numbers[n]} {phrase.text}", colors[n], font_size, taken)
    return image


def paint_masks(
    image: Image.Image,
    masks: Iterable[Mask],
    *,
    colors: Sequence[RGB] | None = None,
    opacity: float = OPACITY,
    outline: bool = True,
) -> Image.Image:
    """A copy of an RGB image tinted by masks of any size, the later ones on top, by default in `color`."""
    canvas = np.array(image)
    for index, mask in enumerate(masks):
        rgb = colors[index] if colors else color(index)
        _tint(canvas, _resize_mask(mask, image.size), rgb, opacity, outline)
    return Image.fromarray(canvas)


def cut_out(image: Image.Image, phrase: PhrasePrediction) -> Image.Image | None:
    """What a phrase names, cut out of the image.

    Args:
        image: The image that was grounded, as in `Grounding.image`.
        phrase: One of its phrases.

    Returns:
        The part of the image inside the phrase's box, transparent (RGBA) outside of the mask; None if the
        mask is empty.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "[sky]", threshold=0)
        >>> ppmn.cut_out(image, grounding[0]).mode
        'RGBA'
    """
    if phrase.box is None:
        return None
    x, y, width, height = phrase.box
    piece = image.crop((x, y, x + width, y + height))
    piece.putalpha(Image.fromarray(phrase.mask[y : y + height, x : x + width]).convert("L"))
    return piece


def shrink(image: Image.Image, max_side: int | None) -> Image.Image:
    """The image with its longer side at most `max_side`."""
    if max_side is None or max(image.size) <= max_side:
        return image
    scale = max_side / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)


def check_rounds(grounding: Grounding) -> None:
    """Refuse a grounding whose rounds were not kept."""
    if not grounding.rounds:
        raise InputError("the rounds were not kept: ground with keep_rounds=True")


def rounds_figure(grounding: Grounding) -> Image.Image:
    """The paper's Figure 5: per phrase the image, the response and pixels of each round, and the mask."""
    check_rounds(grounding)
    thumb = shrink(grounding.image, _TILE)
    rows = min(len(grounding), _MAX_ROWS)
    titles = ["", *(f"H{number}" for number in range(len(grounding.rounds))), "mask"]
    width, height = thumb.width + _MARGIN, thumb.height + _LINE + _MARGIN
    size = (len(titles) * width + _MARGIN, rows * height + _LINE + _MARGIN)
    sheet = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for row in range(rows):
        top = _MARGIN + row * height
        draw.text((_MARGIN, top), f"{row + 1} {grounding[row].text}", fill="black", font=font)
        for column, (title, tile) in enumerate(zip(titles, _tiles(grounding, row, thumb), strict=True)):
            left = _MARGIN + column * width
            sheet.paste(tile, (left, top + _LINE))
            draw.text((left + thumb.width, top), title, "grey", font, anchor="ra")
    if len(grounding) > rows:
        more = f"and {len(grounding) - rows} more phrases"
        draw.text((_MARGIN, rows * height + _MARGIN), more, fill="black", font=font)
    return sheet


def _tiles(grounding: Grounding, index: int, thumb: Image.Image) -> list[Image.Image]:
    """One row of the figure."""
    phrase, rgb = grounding[index], color(index)
    geometry = phrase.geometry.resized(thumb.height, thumb.width)
    grey = np.asarray(thumb.convert("L"))[..., None] * 0.5
    scale = thumb.width / grounding.image.width
    tiles = [thumb]
    for step in grounding.rounds:
        heat = geometry.response(step.maps[index])[..., None]
        tile = Image.fromarray((grey * (1 - heat) + np.array(rgb) * heat).astype(np.uint8))
        draw = ImageDraw.Draw(tile)
        for x, y in (step.pixels[index] * scale).tolist() if step.pixels else []:
            draw.ellipse((x - 1.5, y - 1.5, x + 1.5, y + 1.5), fill="white", outline="black")
        tiles.append(tile)
    mask = geometry.mask(phrase.map, phrase.threshold)
    return [*tiles, paint_masks(thumb, [mask], colors=[rgb])]


def _resize_mask(mask: Mask, size: tuple[int, int]) -> Mask:
    if mask.shape == size[::-1]:
        return mask
    return np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))


def _tint(canvas: NDArray[np.uint8], mask: Mask, rgb: RGB, opacity: float, outline: bool) -> None:
    """Blend a color into the canvas (H, W, 3) where the mask is; by rows, to save memory."""
    thick = max(1, round(max(mask.shape) / 500))
    inner = np.zeros_like(mask)
    inner[thick:-thick, thick:-thick] = (
        mask[2 * thick :, thick:-thick]
        & mask[: -2 * thick, thick:-thick]
        & mask[thick:-thick, 2 * thick :]
        & mask[thick:-thick, : -2 * thick]
    )
    for row in np.flatnonzero(mask.any(1)):
        pixels, inside = canvas[row], mask[row]
        pixels[inside] = (pixels[inside] * (1 - opacity) + np.array(rgb) * opacity).astype(np.uint8)
        if outline:
            pixels[inside & ~inner[row]] = rgb


def _label_point(phrase: PhrasePrediction, geometry: MapGeometry) -> tuple[int, int]:
    """A pixel well inside the mask: where the response is high all around."""
    rows, columns = (max(1, math.floor(size)) for size in geometry.content_size)
    response = phrase.map[:rows, :columns]
    levels = Image.fromarray(np.rint(response * 255).astype(np.uint8))
    smooth = np.asarray(levels.filter(ImageFilter.BoxBlur(min(rows, columns) / 10))).astype(int)
    inside = np.where(response > phrase.threshold, smooth, -1)
    y, x = divmod(int(np.argmax(inside)), columns)
    ((x, y),) = geometry.points(np.array([y * geometry.map_size[1] + x]))
    return int(x), int(y)


def _draw_label(
    image: Image.Image,
    at: tuple[int, int],
    text: str,
    rgb: RGB,
    font_size: int,
    taken: list[tuple[int, int, int, int]],
) -> None:
    """Words on a dark plate, inside the image and below the plates (`taken`) that are already there."""
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(font_size)
    text = text if len(text) <= 28 else f"{text[:27]}…"
    left, top, right, bottom = (round(side) for side in draw.textbbox((0, 0), text, font=font))
    pad = font_size // 3
    width, height = right - left + 2 * pad, bottom - top + 2 * pad
    x = min(max(at[0] - width // 2, 0), max(image.width - width, 0))
    y = min(max(at[1] - height // 2, 0), max(image.height - height, 0))
    for _ in taken:
        for u, v, right_of, below in taken:
            if x < right_of and u < x + width and y < below and v < y + height:
                y = below if below + height <= image.height else y
    taken.append((x, y, x + width, y + height))
    draw.rectangle(
        (x, y, x + width, y + height), fill=(20, 20, 20), outline=rgb, width=max(1, font_size // 8)
    )
    draw.text((x + pad - left, y + pad - top), text, fill="white", font=font)
