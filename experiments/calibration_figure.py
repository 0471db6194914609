"""Reliability diagrams of score and presence, and the curve of absent phrases caught against present lost."""

from pathlib import Path
from typing import Any

from ppmn.files import replacing

TITLES = {
    "score": ("score", "mean IoU of the masks"),
    "presence": ("presence", "fraction that is in the image"),
}


def draw_figure(found: dict[str, Any], curves: dict[str, Any], file: Path) -> None:
    """One panel for each; what a model does not have is left out."""
    import matplotlib.pyplot as plt

    names = [name for name in TITLES if name in found]
    count = len(names) + bool(curves)
    figure, axes = plt.subplots(1, count, figsize=(4.2 * count, 4), squeeze=False)
    for axis, name in zip(axes[0], names, strict=False):
        _draw_reliability(axis, name, found[name])
    if curves:
        _draw_curves(axes[0, -1], curves)
    figure.tight_layout()
    with replacing(file) as part:
        figure.savefig(part, dpi=110, format=file.suffix.lstrip(".") or "png")
    plt.close(figure)


def _draw_reliability(axis: Any, name: str, found: dict[str, Any]) -> None:
    """Observed against predicted; the area of a dot is proportional to the phrases of its bin."""
    bins = found["bins"]
    sizes = [400 * b["count"] / found["count"] for b in bins]
    axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    axis.plot([b["predicted"] for b in bins], [b["observed"] for b in bins], color="tab:blue", linewidth=1)
    axis.scatter([b["predicted"] for b in bins], [b["observed"] for b in bins], s=sizes, color="tab:blue")
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel=TITLES[name][0], ylabel=TITLES[name][1], aspect="equal")
    axis.set_title(f"calibration error {found['error']:.3f}, {found['count']:,} phrases", fontsize=10)


def _draw_curves(axis: Any, curves: dict[str, Any]) -> None:
    for name, curve in curves.items():
        points = [point for point in curve["curve"] if point["lost"] <= 30]
        axis.plot([p["lost"] for p in points], [p["caught"] for p in points], label=name)
    axis.axvline(5, color="0.7", linewidth=1)
    axis.set(
        xlim=(0, 30), ylim=(0, 100), xlabel="% of present phrases lost", ylabel="% of absent phrases caught"
    )
    axis.legend(fontsize=8, loc="lower right")
    axis.set_title("absent phrases", fontsize=10)
