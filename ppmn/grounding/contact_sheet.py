"""One picture of a grounding: the image, and each phrase's mask with its words."""

import math

from PIL import Image, ImageDraw, ImageFont

from ppmn.grounding.render import color, paint_masks, shrink
from ppmn.grounding.result import Grounding, PhrasePrediction

_SPACE = 10  # around and between tiles
_TEXT_HEIGHT = 22
_FONT_SIZE = 14


def contact_sheet(grounding: Grounding, *, columns: int | None = None, tile_side: int = 320) -> Image.Image:
    """The image alone, then for each phrase the image with its mask, its number, words and score.

    Args:
        grounding: What `Grounder.ground` returns.
        columns: Tiles in a row; by default about as many as there are rows.
        tile_side: The limit of a tile's longer side, in pixels.

    Returns:
        The picture.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "a dog and a cat")
        >>> ppmn.contact_sheet(grounding, columns=3).size
        (232, 90)
    """
    thumb = shrink(grounding.image, tile_side)
    tiles = [("image", thumb)]
    for number, phrase in enumerate(grounding):
        geometry = phrase.geometry.resized(thumb.height, thumb.width)
        mask = geometry.mask(phrase.map, phrase.threshold)
        title = _fitting(f"{number + 1} {phrase.text}", f"  {_found(phrase)}", thumb.width)
        tiles.append((title, paint_masks(thumb, [mask], colors=[color(number)])))
    columns = columns or math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    width, height = thumb.width + _SPACE, thumb.height + _TEXT_HEIGHT + _SPACE
    sheet = Image.new("RGB", (columns * width + _SPACE, rows * height + _SPACE), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT_SIZE)
    for place, (title, tile) in enumerate(tiles):
        row, column = divmod(place, columns)
        left, top = _SPACE + column * width, _SPACE + row * height
        sheet.paste(tile, (left, top))
        draw.text((left, top + thumb.height + 3), title, fill="black", font=font)
    return sheet


def _found(phrase: PhrasePrediction) -> str:
    if phrase.area:
        return f"{phrase.score:.2f}"
    return "not English" if phrase.foreign else "absent" if phrase.absent else "no mask"


def _fitting(words: str, end: str, width: int) -> str:
    """The words, cut so that they and what follows them are not wider than a tile."""
    font = ImageFont.load_default(_FONT_SIZE)
    words = " ".join(words.split())
    cut = words
    while len(cut) > 1 and font.getlength(cut + end) > width:
        cut = f"{cut.rstrip('…')[:-1]}…"
    return cut + end
