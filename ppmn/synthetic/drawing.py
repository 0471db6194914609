"""Drawing scenes: things made of a few shapes, stuff as a shade with a pattern."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ppmn.files import read_json
from ppmn.synthetic.templates import read_table
from ppmn.types import SegmentIds

Pixels = NDArray[np.floating[Any]]
SCENE_WIDTH, SCENE_HEIGHT = 320, 240
_COLORS = read_json(Path(__file__).with_name("scene_colors.json"))
_RGB, _PAINTS = _COLORS["colors"], _COLORS["paints"]  # paints by the letters of scene_things.txt
_SHADES: dict[str, list[list[int]]] = _COLORS["shades"]
_LETTERS = "mdl" + "".join(_PAINTS)  # m, d and l follow the color of the thing
_GRID = np.mgrid[:SCENE_HEIGHT, :SCENE_WIDTH].astype(np.float32)
SCENE_STUFF = tuple(_SHADES)
_PATTERNS: dict[str, Callable[[Pixels, Pixels, np.random.Generator], Pixels]] = {
    "sky": lambda y, x, rng: 0.9 + 0.25 * y / SCENE_HEIGHT,
    "grass": lambda y, x, rng: 0.85 + 0.3 * (rng.random(y.shape, np.float32) > 0.6),
    "sand": lambda y, x, rng: 1 - 0.15 * (rng.random(y.shape, np.float32) > 0.85),
    "water": lambda y, x, rng: 1 + 0.18 * np.sin(y / 3 + 2 * np.sin(x / rng.uniform(8, 20))),
    "road": lambda y, x, rng: 1 + 1.2 * ((y // 8 % 6 == 0) & (x // 24 % 2 == 0)),
    "snow": lambda y, x, rng: 1 - 0.06 * (rng.random(y.shape, np.float32) > 0.8),
    "field": lambda y, x, rng: 0.85 + 0.2 * (np.sin(x / 3 + y / 9) > 0),
    "mountain": lambda y, x, rng: 0.85 + 0.3 * ((x + y) // 9 % 2),
    "wall": lambda y, x, rng: 1 - 0.2 * ((y % 14 < 2) | ((x + 12 * (y // 14 % 2)) % 24 < 2)),
    "floor": lambda y, x, rng: 1 - 0.25 * (y // 3 % 5 == 0),
    "rug": lambda y, x, rng: 1 - 0.3 * (x // 16 % 2),
    "curtain": lambda y, x, rng: 1 - 0.3 * (x // 5 % 2),
}


@dataclass(frozen=True)
class SceneThing:
    """A thing that can be drawn: where in the scene, its aspect ratio, its colors and its shapes."""

    name: str
    zone: str
    aspect: float
    colors: tuple[str, ...]
    shapes: tuple[tuple[str, tuple[float, ...], int], ...]


@cache
def scene_things() -> tuple[SceneThing, ...]:
    """The things of `scene_things.txt`."""
    found = []
    for head, body in read_table("scene_things.txt"):
        name, zone, aspect, colors = head.split()
        shapes = []
        for shape in body.split(";"):
            op, *numbers, paint = shape.split()
            shapes.append((op, tuple(map(float, numbers)), _LETTERS.index(paint) + 1))
        color_names = tuple(_RGB) if colors == "any" else tuple(colors.split(","))
        found.append(SceneThing(name, zone, float(aspect), color_names, tuple(shapes)))
    return tuple(found)


def draw_thing(thing: SceneThing, color: str, rng: np.random.Generator) -> tuple[NDArray[np.uint8], Pixels]:
    """Paint numbers (0 = outside), (h, w), and colors, (h, w, 3), of one thing."""
    size = rng.uniform(38, 84)
    width, height = round(size * thing.aspect**0.5), round(size / thing.aspect**0.5)
    canvas = Image.new("L", (width, height))
    for op, numbers, paint in thing.shapes:
        _shape(canvas, op, numbers, paint)
    if rng.random() < 0.5:
        canvas = canvas.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    canvas = canvas.rotate(float(rng.uniform(-10, 10)), expand=True)
    index = np.asarray(canvas)
    main = np.clip(np.array(_RGB[color]) + rng.integers(-9, 10) + rng.integers(-5, 6, 3), 0, 255)
    table = np.array([(0, 0, 0), main, main * 0.82, main * 0.5 + 127, *_PAINTS.values()], float)
    return index, table[index] * _texture(index.shape, rng)


def _shape(canvas: Image.Image, op: str, numbers: tuple[float, ...], paint: int) -> None:
    pen, (width, height) = ImageDraw.Draw(canvas), canvas.size
    line = max(2, round(0.06 * min(width, height)))
    if op in "SC":
        points = _star(int(numbers[0])) if op == "S" else _crescent()
        pen.polygon([(x * width, y * height) for x, y in points], fill=paint)
        return
    points = [(x * (width - 1), y * (height - 1)) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
    match op:
        case "O":
            pen.ellipse(points, outline=paint, width=2 * line)
        case "H":
            pen.pieslice(points, 180, 360, fill=paint)
        case "L":
            pen.line(points, fill=paint, width=line)
        case _:
            filled: dict[str, Any] = {"E": pen.ellipse, "R": pen.rectangle, "P": pen.polygon}
            filled[op](points, fill=paint)


def _star(rays: int) -> list[tuple[float, float]]:
    turns = [
        (n * math.pi / rays - math.pi / 2, (0.5, 0.22 if rays < 8 else 0.36)[n % 2]) for n in range(2 * rays)
    ]
    return [(0.5 + r * math.cos(a), 0.5 + r * math.sin(a)) for a, r in turns]


def _crescent() -> list[tuple[float, float]]:
    outer = [math.radians(a) for a in range(60, 301, 12)]
    inner = [math.radians(a) for a in range(280, 79, -12)]
    return [(0.65 + 0.62 * math.cos(a), 0.5 + 0.5 * math.sin(a)) for a in outer] + [
        (0.85 + 0.5 * math.cos(a), 0.5 + 0.38 * math.sin(a)) for a in inner
    ]


def _texture(shape: tuple[int, ...], rng: np.random.Generator) -> Pixels:
    """Plain, striped either way, dotted, or shaded: factors near one, (h, w, 1)."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    step = int(rng.integers(5, 9))
    factors: tuple[Pixels, ...] = (
        np.ones(shape),
        1 - 0.14 * (x // step % 2),
        1 - 0.14 * (y // step % 2),
        1 - 0.16 * ((x % step < 2) & (y % step < 2)),
        1.04 - 0.2 * (x / shape[1]),
    )
    return factors[int(rng.integers(5))][..., None]


def draw_background(rng: np.random.Generator) -> tuple[Pixels, SegmentIds, list[str], int]:
    """Colors, segment ids from 1, names of the stuff, and the row where the ground begins."""
    horizon = int(rng.integers(90, 150))
    y, x = _GRID
    indoors = rng.random() < 0.35
    if indoors:
        names, masks = ["wall", "floor"], [y < horizon + 30, y >= horizon + 30]
        if rng.random() < 0.5:
            names.append("rug")
            far = ((x - rng.uniform(90, 230)) / rng.uniform(60, 110)) ** 2
            masks.append(far + ((y - 208) / rng.uniform(16, 26)) ** 2 < 1)
        if rng.random() < 0.4:
            names.append("curtain")
            side, reach = rng.random() < 0.5, int(rng.integers(40, 80))
            masks.append((x < reach if side else x >= SCENE_WIDTH - reach) & (y < horizon + 22))
    else:
        grounds = ("grass", "sand", "water", "road", "snow", "field")
        first, second = (grounds[int(i)] for i in rng.permutation(len(grounds))[:2])
        names, masks = ["sky", first], [y < horizon, y >= horizon]
        if rng.random() < 0.45:
            peaks = 60 * np.abs(np.sin(x / rng.uniform(28, 55) + rng.uniform(0, 6))) * rng.uniform(0.7, 1)
            names.append("mountain")
            masks.append((y < horizon) & (y > horizon - 14 - peaks))
        if rng.random() < 0.5:
            names.append(second)
            bend = int(rng.integers(50, 75)) + 8 * np.sin(x / rng.uniform(15, 40))
            masks.append(y > SCENE_HEIGHT - bend)
    ids = np.zeros((SCENE_HEIGHT, SCENE_WIDTH), np.int32)
    pixels = np.zeros((SCENE_HEIGHT, SCENE_WIDTH, 3), np.float32)
    for n, (name, mask) in enumerate(zip(names, masks, strict=True), 1):
        ids[mask], pixels[mask] = n, _stuff(name, y[mask], x[mask], rng)
    return pixels, ids, names, horizon + (30 if indoors else 0)


def _stuff(name: str, y: Pixels, x: Pixels, rng: np.random.Generator) -> Pixels:
    """Stuff at the pixels (y, x): a shade times a pattern of its own, (n, 3)."""
    shades = _SHADES[name]
    base = np.array(shades[int(rng.integers(len(shades)))], np.float32) + rng.integers(-8, 9, 3)
    return _PATTERNS[name](y, x, rng)[:, None] * base
