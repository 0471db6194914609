"""Drawn scenes with exact masks and true narratives: a data set from nothing."""

import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from ppmn.data.panoptic import Category, PanopticImage, Segment
from ppmn.errors import InputError
from ppmn.synthetic.drawing import HEIGHT, STUFF, WIDTH, Kind, Pixels, background, kinds, thing
from ppmn.synthetic.narrator import Narrator, png_entry, write_json

FEWEST, MOST = 5, 12  # things in a scene
VISIBLE = 0.65  # share of a thing that may not be covered by others


@dataclass(frozen=True)
class Scene:
    pixels: NDArray[np.uint8]  # (H, W, 3)
    ids: NDArray[np.int32]  # (H, W)
    segments: tuple[Segment, ...]


@cache
def categories() -> dict[int, Category]:
    """Things from 1 on, stuff after them."""
    names = [(k.name, True) for k in kinds()] + [(s, False) for s in STUFF]
    return {n: Category(n, name, isthing) for n, (name, isthing) in enumerate(names, 1)}


def draw_scene(rng: np.random.Generator) -> Scene:
    """Two to four kinds of stuff, and 5 to 12 things in front of it, some of one kind."""
    pixels, ids, stuff, horizon = background(rng)
    numbers = {c.name: c.id for c in categories().values()}
    segment_kinds = {n: numbers[name] for n, name in enumerate(stuff, 1)}
    sizes: dict[int, int] = {}
    cast = _cast(rng, int(rng.integers(6, MOST + 1)))
    while cast or len(sizes) < FEWEST:
        kind, colour = (cast or _cast(rng, 1)).pop()
        for _ in range(8):
            index, rgb = thing(kind, colour, rng)
            id = len(segment_kinds) + 1
            if _place(pixels, ids, index, rgb, id, sizes, kind, horizon, rng):
                segment_kinds[id], sizes[id] = numbers[kind.name], int((index > 0).sum())
                break
    light = rng.uniform(0.92, 1.06) + np.linspace(-0.05, 0.05, WIDTH)[:, None] * rng.choice((-1, 1))
    noise = rng.integers(-5, 6, (HEIGHT, WIDTH, 1), np.int8)
    photo = np.clip(pixels * light.astype(np.float32) + noise, 0, 255).astype(np.uint8)
    return Scene(photo, ids, _segments(ids, segment_kinds))


def _cast(rng: np.random.Generator, wanted: int) -> list[tuple[Kind, str]]:
    """Kinds and colours; most scenes have two or three of a kind, in different colours if it has any."""
    cast: list[tuple[Kind, str]] = []
    for n in rng.permutation(len(kinds())):
        kind = kinds()[int(n)]
        copies = min(int(rng.choice((1, 2, 3), p=(0.62, 0.3, 0.08))), wanted - len(cast))
        names = list(dict.fromkeys(kind.colours))
        order = [names[int(i) % len(names)] for i in rng.permutation(max(len(names), copies))]
        if copies > 1 and rng.random() < 0.2:
            order = [order[0]] * copies
        cast += [(kind, order[c]) for c in range(copies)]
        if len(cast) >= wanted:
            break
    return [cast[int(i)] for i in rng.permutation(len(cast))]


def _place(
    pixels: Pixels,
    ids: NDArray[np.int32],
    index: NDArray[np.uint8],
    rgb: Pixels,
    id: int,
    sizes: dict[int, int],
    kind: Kind,
    horizon: int,
    rng: np.random.Generator,
) -> bool:
    """Draw the thing somewhere in its zone, unless it would hide too much of another."""
    height, width = index.shape
    low, high = {"sky": (0, horizon - height // 2), "ground": (horizon - height // 2, HEIGHT - height)}.get(
        kind.zone, (0, HEIGHT - height)
    )
    y = int(rng.integers(max(low, 0), max(high, low, 0) + 1))
    y, x = min(y, HEIGHT - height), int(rng.integers(0, WIDTH - width + 1))
    frame, mask = ids[y : y + height, x : x + width], index > 0
    covered = np.bincount(frame[mask], minlength=id)
    for other, size in sizes.items():
        left = int((ids == other).sum()) - int(covered[other]) if covered[other] else size
        if left < VISIBLE * size:
            return False
    frame[mask] = id
    pixels[y : y + height, x : x + width][mask] = rgb[mask]
    return True


def _segments(ids: NDArray[np.int32], kinds_of: dict[int, int]) -> tuple[Segment, ...]:
    found = []
    for id, category in kinds_of.items():
        rows, columns = np.nonzero((ids == id).any(1))[0], np.nonzero((ids == id).any(0))[0]
        if rows.size:
            x, y = int(columns[0]), int(rows[0])
            box = (x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1)
            found.append(Segment(id, category, int((ids == id).sum()), box))
    return tuple(found)


def write_scenes(out: Path, count: int, split: str = "train", seed: int = 0) -> None:
    """A data set in the official layout; the same seed, split and index draw the same scene."""
    annotations = out / "annotations"
    if (annotations / f"panoptic_{split}.json").exists():
        raise InputError(f"{out} already has a split {split!r}: choose another folder or --split")
    if count < 1:
        raise InputError(f"--count must be at least 1, not {count}")
    photos, pngs = out / "images" / split, annotations / "panoptic_segmentation" / split
    try:
        photos.mkdir(parents=True, exist_ok=True)
        pngs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error})") from error
    narrator = Narrator(categories(), grounded=8)
    images, infos, narratives = [], [], []
    for n in tqdm(range(count), unit="scene", desc=f"{out.name}:{split}"):
        rng = np.random.default_rng((seed, zlib.crc32(split.encode()), n))
        scene, name = draw_scene(rng), f"{n:06d}"
        Image.fromarray(scene.pixels).save(photos / f"{name}.jpg", quality=95, subsampling=0)
        rgb = np.stack([scene.ids, np.zeros_like(scene.ids), np.zeros_like(scene.ids)], -1).astype(np.uint8)
        Image.fromarray(rgb).save(pngs / f"{name}.png", compress_level=4)
        image = PanopticImage(n, photos / f"{name}.jpg", pngs / f"{name}.png", HEIGHT, WIDTH, scene.segments)
        narratives.append(png_entry(n, narrator(image, scene.ids, scene.pixels, rng)))
        images.append({"id": n, "file_name": f"{name}.jpg", "height": HEIGHT, "width": WIDTH})
        info = [
            {"id": s.id, "category_id": s.category_id, "area": s.area, "bbox": s.bbox, "iscrowd": 0}
            for s in scene.segments
        ]
        infos.append({"image_id": n, "file_name": f"{name}.png", "segments_info": info})
    listed = [{"id": c.id, "name": c.name, "isthing": int(c.isthing)} for c in categories().values()]
    write_json(annotations / f"png_coco_{split}.json", narratives)
    content = {"images": images, "annotations": infos, "categories": listed}
    write_json(annotations / f"panoptic_{split}.json", content)
