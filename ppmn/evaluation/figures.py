"""The paper's figures: recall curves (Figure 4), and sheets of image, truth and prediction side by side."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ppmn.errors import InputError
from ppmn.files import replacing
from ppmn.grounding.render import RGB, color, paint_masks
from ppmn.types import Mask, Span

_PANEL = 360  # of a sheet: width of one picture
_MARGIN = 12
_LINE = 20  # height of a line of text
_FIGURE_4 = {
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


def curves(
    runs: Sequence[tuple[str, Mapping[str, Any]]], file: Path, *, things_only: Collection[str] = ()
) -> None:
    """Draw the recall curves of named runs (each the report of an evaluation) as in the paper's Figure 4.

    Of the runs named in `things_only` only the curve of things is drawn.
    """
    protocols = sorted({run["protocol"] for _, run in runs})
    if len(protocols) != 1:
        raise InputError(f"curves in one picture are of one protocol, not {protocols}")
    labels = {"xlabel": "IoU", "ylabel": f"Recall@IoU, protocol {protocols[0]}"}
    figure = new_figure(15, 5.4 + 0.45 * len(runs))  # under the curves, two lines per run in the legends
    for axes, (title, splits) in zip(figure.subplots(1, 3), _FIGURE_4.items(), strict=True):
        for number, (name, run) in enumerate(runs):
            for split in splits:
                if run["phrases"][split] == 0 or (name in things_only and split != "things"):
                    continue
                label = f"{name}{'' if split == 'overall' else f' ({split})'}  {run[split]:.1f}"
                style = "--" if split in ("things", "singulars") else "-"
                axes.plot(
                    run["curve"]["iou"], run["curve"][split], style, color=f"C{number}", lw=2, label=label
                )
        axes.set(title=title, xlim=(0, 1), ylim=(0, 1), aspect="equal", **labels)
        axes.set_xticks(np.arange(0, 1.01, 0.1))
        axes.set_yticks(np.arange(0, 1.01, 0.1))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), fontsize="small")
    with replacing(file) as part:
        figure.savefig(part, dpi=120, format="png", bbox_inches="tight")


@dataclass(frozen=True)
class SheetRow:
    """One narrative of a sheet; masks of any size cover the image, one color per phrase."""

    image: Image.Image
    caption: str
    spans: Sequence[Span]
    truth: Sequence[Mask]
    prediction: Sequence[Mask]
    note: str = ""


def sheet(rows: Sequence[SheetRow], file: Path) -> None:
    """Draw rows of image, truth and prediction, each with its caption in the colors of the masks."""
    pictures = [_row(row) for row in rows]
    height = _LINE + 2 * _MARGIN + sum(picture.height for picture in pictures)
    canvas = Image.new("RGB", (3 * _PANEL + 4 * _MARGIN, height), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(14)
    for column, title in enumerate(("image", "truth", "prediction")):
        draw.text((_MARGIN + column * (_PANEL + _MARGIN), _MARGIN), title, "black", font)
    top = _LINE + 2 * _MARGIN
    for picture in pictures:
        canvas.paste(picture, (0, top))
        top += picture.height
    with replacing(file) as part:
        canvas.save(part, format="PNG")


def _row(row: SheetRow) -> Image.Image:
    scale = _PANEL / row.image.width
    image = row.image.convert("RGB").resize((_PANEL, max(1, round(row.image.height * scale))))
    gray = image.convert("L").convert("RGB")
    truth, prediction = (
        paint_masks(gray, masks, opacity=2 / 3, outline=False) for masks in (row.truth, row.prediction)
    )
    words = _words(row)
    lines = 1 + max((line for _, line, _, _ in words), default=0)
    picture = Image.new(
        "RGB", (3 * _PANEL + 4 * _MARGIN, image.height + _LINE * lines + 2 * _MARGIN), "white"
    )
    for column, panel in enumerate((image, truth, prediction)):
        picture.paste(panel, (_MARGIN + column * (_PANEL + _MARGIN), 0))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(14)
    for left, line, text, rgb in words:
        draw.text((_MARGIN + left, image.height + 6 + _LINE * line), text, rgb, font)
    return picture


def _words(row: SheetRow) -> list[tuple[float, int, str, RGB]]:
    """The caption (and the note after it) word by word: left side, line, text, color."""
    font, width = ImageFont.load_default(14), 3 * _PANEL + 2 * _MARGIN
    placed: list[tuple[float, int, str, RGB]] = []
    left, line = 0.0, 0
    text = f"{row.caption}   {row.note}" if row.note else row.caption
    for word in re.finditer(r"\S+\s*", text):
        inside = [i for i, (start, end) in enumerate(row.spans) if start < word.end() and word.start() < end]
        length = font.getlength(word.group())
        if left and left + length > width:
            left, line = 0.0, line + 1
        placed.append((left, line, word.group(), color(inside[0]) if inside else (60, 60, 60)))
        left += length
    return placed
