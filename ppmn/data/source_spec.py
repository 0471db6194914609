"""The text form of a data source, `ROOT[:SPLIT][=WEIGHT]`."""

import math
from pathlib import Path

from ppmn.data.panoptic import DataSpec, splits
from ppmn.errors import InputError


def parse_spec(text: str) -> DataSpec:
    """Read `ROOT[:SPLIT][=WEIGHT]`; the weight is how often a source is drawn from, relative to others."""
    rest, weight = text, 1.0
    if not Path(text).is_dir() and "=" in text:
        rest, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError as error:
            raise InputError(f"data {text}: the weight {number!r} is not a number") from error
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(f"data {text}: the weight must be a number above 0, not {weight:g}")
    root, split = rest, None
    if not Path(rest).is_dir() and ":" in rest:
        root, _, split = rest.rpartition(":")
    if not root or not Path(root).is_dir():
        raise InputError(f"data {text}: {root or rest!r} is not a folder")
    if split is not None and split not in splits(Path(root)):
        raise InputError(f"data {text}: no split {split!r}; {root} has {', '.join(splits(Path(root)))}")
    return DataSpec(Path(root), split, weight)
