"""The paper's figures: recall curves (Figure 4), and sheets of photo, truth and prediction side by side."""

import colorsys
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ppmn.errors import InputError
from ppmn.files import replacing

PANEL = 360  # width of one picture of a sheet, in pixels
MARGIN = 12
LINE = 20  # height of a line of text
PANELS_OF_FIGURE_4 = {
    "Overall performance": ("overall",),
    "Things and stuff categories": ("things", "stuff"),
    "Singulars and plurals": ("singulars", "plurals"),
}


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches, that needs no display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("figures are drawn with matplotlib: pip install 'ppmn[train]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def curves(runs: Sequence[tuple[str, Mapping[str, Any]]], file: Path) -> None:
    """Draw the recall curves of named runs (each the report of an evaluation) as in the paper's Figure 4."""
    protocols = {run["protocol"] for _, run in runs}
    if len(protocols) != 1:
        raise InputError(f"curves in one picture are of one protocol, not {sorted(protocols)}")
    figure = new_figure(15, 5.2)
    for axes, (title, splits) in zip(figure.subplots(1, 3), PANELS_OF_FIGURE_4.items(), strict=True):
        for number, (name, run) in enumerate(runs):
            for split in splits:
                if run["phrases"][split] == 0:
                    continue
                label = f"{name}{'' if split == 'overall' else f' ({split})'}  {run[split]:.1f}"
                style = "--" if split in ("things", "singulars") else "-"
                axes.plot(
                    run["curve"]["iou"], run["curve"][split], style, color=f"C{number}", lw=2, label=label
                )
        axes.set(title=title, xlabel="IoU", ylabel="Recall@IoU", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set_xticks(np.arange(0, 1.01, 0.1))
        axes.set_yticks(np.arange(0, 1.01, 0.1))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(loc="best", fontsize="small")
    figure.suptitle(f"Average Recall, protocol {protocols.pop()}")
    with replacing(file) as part:
        figure.savefig(part, dpi=120, format="png")


@dataclass(frozen=True)
class SheetRow:
    """One narrative of a sheet: its masks, of any size, cover the photo; one colour a phrase."""

    photo: Image.Image
    caption: str
    spans: Sequence[tuple[int, int]]
    truth: Sequence[NDArray[np.bool_]]
    prediction: Sequence[NDArray[np.bool_]]
    note: str = ""


def sheet(rows: Sequence[SheetRow], file: Path) -> None:
    """Draw rows of photo, truth and prediction, each with its caption in the colours of the masks."""
    pictures = [_row(row) for row in rows]
    height = LINE + 2 * MARGIN + sum(picture.height for picture in pictures)
    canvas = Image.new("RGB", (3 * PANEL + 4 * MARGIN, height), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(14)
    for column, title in enumerate(("photo", "truth", "prediction")):
        draw.text((MARGIN + column * (PANEL + MARGIN), MARGIN), title, "black", font)
    top = LINE + 2 * MARGIN
    for picture in pictures:
        canvas.paste(picture, (0, top))
        top += picture.height
    with replacing(file) as part:
        canvas.save(part, format="PNG")


def phrase_colour(index: int) -> tuple[int, int, int]:
    """A colour a phrase, neighbours far apart on the colour wheel."""
    red, green, blue = colorsys.hsv_to_rgb((0.6 + 0.618034 * index) % 1, 0.85, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def paint(photo: Image.Image, masks: Sequence[NDArray[np.bool_]]) -> Image.Image:
    """The photo in grey under its masks, each in its phrase's colour; later masks lie on top."""
    painted = photo.convert("L").convert("RGB")
    for index, mask in enumerate(masks):
        stencil = Image.fromarray(mask.astype(np.uint8) * 170).resize(photo.size, Image.Resampling.NEAREST)
        painted.paste(phrase_colour(index), mask=stencil)
    return painted


def _row(row: SheetRow) -> Image.Image:
    scale = PANEL / row.photo.width
    photo = row.photo.convert("RGB").resize((PANEL, max(1, round(row.photo.height * scale))))
    words = _words(row)
    lines = 1 + max((line for _, line, _, _ in words), default=0)
    picture = Image.new("RGB", (3 * PANEL + 4 * MARGIN, photo.height + LINE * lines + 2 * MARGIN), "white")
    for column, panel in enumerate((photo, paint(photo, row.truth), paint(photo, row.prediction))):
        picture.paste(panel, (MARGIN + column * (PANEL + MARGIN), 0))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(14)
    for left, line, text, colour in words:
        draw.text((MARGIN + left, photo.height + 6 + LINE * line), text, colour, font)
    return picture


def _words(row: SheetRow) -> list[tuple[float, int, str, tuple[int, int, int]]]:
    """The caption (and the note after it) word by word: left edge, line, text, colour."""
    font, width = ImageFont.load_default(14), 3 * PANEL + 2 * MARGIN
    placed: list[tuple[float, int, str, tuple[int, int, int]]] = []
    left, line = 0.0, 0
    text = f"{row.caption}   {row.note}" if row.note else row.caption
    for word in re.finditer(r"\S+\s*", text):
        inside = [i for i, (start, end) in enumerate(row.spans) if start < word.end() and word.start() < end]
        length = font.getlength(word.group())
        if left and left + length > width:
            left, line = 0.0, line + 1
        placed.append((left, line, word.group(), phrase_colour(inside[0]) if inside else (60, 60, 60)))
        left += length
    return placed
