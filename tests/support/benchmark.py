"""A data set of one tiny image in the layout of the benchmark."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from ppmn.images import ids_to_rgb

IDS = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 2], [300, 300, 300, 300, 70_000, 70_000]], np.int32)


def utterance(text: str, *segments: int, noun: bool = False) -> dict:
    return {
        "utterance": text,
        "segment_ids": [str(s) for s in segments],
        "plural": len(segments) > 1,
        "noun": noun,
    }


NARRATIVES = [
    {
        "image_id": "7",
        "annotator_id": 0,
        "caption": "Two dogs  aren't on the Grass, the café.",
        "segments": [
            utterance("Two dogs", 1, 2, noun=True),
            utterance("are n't on the"),
            utterance("grass", 300, noun=True),
            utterance(", the"),
            utterance("cafe", noun=True),
            utterance("."),
        ],
    },
    {
        "image_id": "7",
        "annotator_id": 1,
        "caption": "This is an image.",
        "segments": [utterance("This is an"), utterance("image", noun=True), utterance(".")],
    },
    {
        "image_id": "7",
        "annotator_id": 2,
        "caption": "A ball.",
        "segments": [utterance("A"), utterance("ball", 70_000, noun=True), utterance(".")],
    },
]


def write_data(root: Path) -> Path:
    """Write the data set: two dogs and a ball (things) on grass (stuff)."""
    for folder in ("images/val2017", "annotations/panoptic_segmentation/val2017"):
        (root / folder).mkdir(parents=True)
    Image.new("RGB", (6, 3), "green").save(root / "images/val2017/7.jpg")
    Image.fromarray(ids_to_rgb(IDS)).save(root / "annotations/panoptic_segmentation/val2017/7.png")
    categories = {1: 18, 2: 18, 300: 193, 70_000: 37}
    segments = []
    for segment, category in categories.items():
        ys, xs = np.nonzero(segment == IDS)
        box = [int(xs.min()), int(ys.min()), int(np.ptp(xs)) + 1, int(np.ptp(ys)) + 1]
        segments.append({"id": segment, "category_id": category, "area": len(ys), "bbox": box, "iscrowd": 0})
    panoptic = {
        "images": [{"id": 7, "file_name": "7.jpg", "height": 3, "width": 6}],
        "annotations": [{"image_id": 7, "file_name": "7.png", "segments_info": segments}],
        "categories": [
            {"id": 18, "name": "dog", "isthing": 1},
            {"id": 37, "name": "ball", "isthing": 1},
            {"id": 193, "name": "grass", "isthing": 0},
        ],
    }
    (root / "annotations/panoptic_val2017.json").write_text(json.dumps(panoptic))
    (root / "annotations/png_coco_val2017.json").write_text(json.dumps(NARRATIVES))
    return root
