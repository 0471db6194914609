"""Drawn scenes with exact masks and true captions: a data set from scratch."""

import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from ppmn.data.panoptic import Category, PanopticImage, Segment, panoptic_file
from ppmn.errors import InputError
from ppmn.files import make_folder, write_json
from ppmn.images import ids_to_rgb
from ppmn.synthetic import drawing
from ppmn.synthetic.drawing import SCENE_HEIGHT, SCENE_WIDTH, SceneThing
from ppmn.synthetic.narrate import narrative_entry
from ppmn.synthetic.narrator import Narrator
from ppmn.types import SegmentIds

_MIN_THINGS, _MAX_THINGS = 5, 12
_MIN_VISIBLE = 0.65  # fraction of a thing that others may not cover
_TRIES = 8  # places for one thing


@dataclass(frozen=True)
class Scene:
    """A drawn image with its segments."""

    pixels: NDArray[np.uint8]  # (H, W, 3)
    ids: SegmentIds  # (H, W)
    segments: tuple[Segment, ...]


@cache
def scene_categories() -> dict[int, Category]:
    """The categories of scenes by id: things from 1, then stuff."""
    names = [(thing.name, True) for thing in drawing.scene_things()]
    names += [(name, False) for name in drawing.SCENE_STUFF]
    return {n: Category(n, name, isthing) for n, (name, isthing) in enumerate(names, 1)}


def draw_scene(rng: np.random.Generator) -> Scene:
    """Two to four regions of stuff, and 5 to 12 things in front of them, some of one category."""
    pixels, ids, stuff, horizon = drawing.draw_background(rng)
    category_ids = {c.name: c.id for c in scene_categories().values()}
    segments = {n: category_ids[name] for n, name in enumerate(stuff, 1)}
    areas: dict[int, int] = {}
    things = _choose_things(rng, int(rng.integers(6, _MAX_THINGS + 1)))
    while things or len(areas) < _MIN_THINGS:
        thing, color = (things or _choose_things(rng, 1)).pop()
        for _ in range(_TRIES):
            index, rgb = drawing.draw_thing(thing, color, rng)
            window, mask = _random_window(thing.zone, index.shape, horizon, rng), index > 0
            if not _hides_another(ids, ids[window][mask], areas):
                id = len(segments) + 1
                segments[id], areas[id] = category_ids[thing.name], int(mask.sum())
                ids[window][mask], pixels[window][mask] = id, rgb[mask]
                break
    light = rng.uniform(0.92, 1.06) + np.linspace(-0.05, 0.05, SCENE_WIDTH)[:, None] * rng.choice((-1, 1))
    noise = rng.integers(-5, 6, (SCENE_HEIGHT, SCENE_WIDTH, 1), np.int8)
    image = np.clip(pixels * light.astype(np.float32) + noise, 0, 255).astype(np.uint8)
    return Scene(image, ids, _segments(ids, segments))


def _choose_things(rng: np.random.Generator, count: int) -> list[tuple[SceneThing, str]]:
    """Things and their colors; most scenes have two or three of a category, if possible in other colors."""
    chosen: list[tuple[SceneThing, str]] = []
    for n in rng.permutation(len(drawing.scene_things())):
        thing = drawing.scene_things()[int(n)]
        copies = min(int(rng.choice((1, 2, 3), p=(0.62, 0.3, 0.08))), count - len(chosen))
        names = list(dict.fromkeys(thing.colors))
        colors = [names[int(i) % len(names)] for i in rng.permutation(max(len(names), copies))]
        if copies > 1 and rng.random() < 0.2:
            colors = [colors[0]] * copies
        chosen += [(thing, color) for color in colors[:copies]]
        if len(chosen) >= count:
            break
    return [chosen[int(i)] for i in rng.permutation(len(chosen))]


def _random_window(
    zone: str, shape: tuple[int, ...], horizon: int, rng: np.random.Generator
) -> tuple[slice, slice]:
    """A random place in a zone for a thing of that shape."""
    height, width = shape
    bottom = SCENE_HEIGHT - height
    zones = {"sky": (0, horizon - height // 2), "ground": (horizon - height // 2, bottom)}
    low, high = zones.get(zone, (0, bottom))
    y = min(int(rng.integers(max(low, 0), max(high, low, 0) + 1)), bottom)
    x = int(rng.integers(0, SCENE_WIDTH - width + 1))
    return slice(y, y + height), slice(x, x + width)


def _hides_another(ids: SegmentIds, covered: SegmentIds, areas: dict[int, int]) -> bool:
    """Whether covering those pixels would leave too little of another thing."""
    lost = np.bincount(covered, minlength=max(areas, default=0) + 1)
    left = {id: int((ids == id).sum()) - lost[id] for id in areas if lost[id]}
    return any(left[id] < _MIN_VISIBLE * areas[id] for id in left)


def _segments(ids: SegmentIds, category_ids: dict[int, int]) -> tuple[Segment, ...]:
    found = []
    for id, category in category_ids.items():
        if box := Image.fromarray(ids == id).getbbox():
            x0, y0, x1, y1 = box
            found.append(Segment(id, category, int((ids == id).sum()), (x0, y0, x1 - x0, y1 - y0)))
    return tuple(found)


def write_scenes(out: Path, count: int, *, split: str = "train", seed: int = 0) -> None:
    """Write a data set in the layout of COCO; seed, split and index determine a scene."""
    if panoptic_file(out, split).exists():
        raise InputError(f"{out} already has a split {split!r}: choose another folder or split")
    if count < 1:
        raise InputError(f"the number of scenes must be at least 1, not {count}")
    annotations = out / "annotations"
    image_folder = make_folder(out / "images" / split)
    png_folder = make_folder(annotations / "panoptic_segmentation" / split)
    narrator = Narrator(scene_categories(), grounded=8)
    images, infos, narratives = [], [], []
    for n in tqdm(range(count), unit="scene", desc=f"{out.name}:{split}", disable=None):
        rng = np.random.default_rng((seed, zlib.crc32(split.encode()), n))
        scene = draw_scene(rng)
        file, png = image_folder / f"{n:06d}.jpg", png_folder / f"{n:06d}.png"
        Image.fromarray(scene.pixels).save(file, quality=95, subsampling=0)
        Image.fromarray(ids_to_rgb(scene.ids)).save(png, compress_level=4)
        image = PanopticImage(n, file, png, SCENE_HEIGHT, SCENE_WIDTH, scene.segments)
        narratives.append(narrative_entry(n, narrator(image, scene.ids, scene.pixels, rng)))
        images.append({"id": n, "file_name": file.name, "height": SCENE_HEIGHT, "width": SCENE_WIDTH})
        segments = [
            {"id": s.id, "category_id": s.category_id, "area": s.area, "bbox": s.bbox, "iscrowd": 0}
            for s in scene.segments
        ]
        infos.append({"image_id": n, "file_name": png.name, "segments_info": segments})
    categories = [
        {"id": c.id, "name": c.name, "isthing": int(c.isthing)} for c in scene_categories().values()
    ]
    write_json(annotations / f"png_coco_{split}.json", narratives)
    content = {"images": images, "annotations": infos, "categories": categories}
    write_json(panoptic_file(out, split), content)
