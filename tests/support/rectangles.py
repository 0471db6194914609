"""A source whose images are rectangles of categories."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ppmn.images import ids_to_rgb

HEIGHT, WIDTH = 40, 80
CATEGORIES = ["dog", "cat", "bus", "person", "car", "boat", "kite", "bed"]
DOGS = {1: ("dog", np.s_[4:24, 2:30]), 2: ("dog", np.s_[10:30, 50:74]), 3: ("cat", np.s_[32:38, 30:44])}
CLOSE = {1: ("dog", np.s_[4:24, 2:26]), 2: ("dog", np.s_[10:30, 26:32]), 3: ("bus", np.s_[0:9, 60:80])}


def write_source(root: Path, scenes: list[dict[int, tuple[str, Any]]], names: list[str]) -> None:
    """Images with rectangles of categories; every dog is described."""
    pngs = root / "annotations/panoptic_segmentation/train"
    pngs.mkdir(parents=True)
    (root / "images/train").mkdir(parents=True)
    images, annotations = [], []
    for number, (scene, name) in enumerate(zip(scenes, names, strict=True)):
        ids, segments = np.zeros((HEIGHT, WIDTH), np.int32), []
        for id, (category, (y, x)) in scene.items():
            ids[y, x] = id
            box = [x.start, y.start, x.stop - x.start, y.stop - y.start]
            segment = {"id": id, "category_id": CATEGORIES.index(category) + 1, "area": box[2] * box[3]}
            described = {"expressions": [f"small {category}"]} if category == "dog" else {}
            segments.append(segment | {"bbox": box} | described)
        Image.fromarray(ids_to_rgb(ids)).save(pngs / f"{name}.png")
        Image.fromarray((60 * ids).astype(np.uint8)).save(root / f"images/train/{name}.png")
        images.append({"id": number, "file_name": f"{name}.png", "height": HEIGHT, "width": WIDTH})
        annotations.append({"image_id": number, "file_name": f"{name}.png", "segments_info": segments})
    categories = [{"id": n, "name": name, "isthing": 1} for n, name in enumerate(CATEGORIES, 1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations/panoptic_train.json").write_text(json.dumps(content))


HELD_OUT = ["9", "39", "49", "51"]  # names that the split holds out
TRAINED = ["1", "2"]
