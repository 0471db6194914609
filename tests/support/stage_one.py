"""Output of stage one as detectron2 leaves it, small and with random features, and a small second stage."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer

from ppmn.baselines.two_stage import TwoStage, TwoStageConfig
from ppmn.data.panoptic import PanopticImage
from ppmn.images import ids_to_rgb
from ppmn.types import SegmentIds

CATEGORIES = [{"id": 1, "name": "person", "isthing": 1}, {"id": 193, "name": "grass", "isthing": 0}]
REGION_SIZE = 16


def small_two_stage(text: Path, **changes: Any) -> tuple[TwoStage, Any]:
    """A second stage of width 32 with random weights, and the tokenizer of a tiny BERT."""
    tokenizer = AutoTokenizer.from_pretrained(text)
    sizes = {"width": 32, "heads": 4, "ffn": 64, "language_layers": 2, "region_layers": 1, "cross_layers": 2}
    sizes |= {"region_size": REGION_SIZE, "vocabulary": len(tokenizer), "positions": 64, "max_pieces": 40}
    torch.manual_seed(4)
    model = TwoStage(TwoStageConfig(**{**sizes, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval(), tokenizer


def image_of(ids: SegmentIds, number: int = 7) -> PanopticImage:
    """The image that a map of segment ids belongs to."""
    return PanopticImage(number, Path("7.jpg"), Path("7.png"), *ids.shape, ())


def write_stage_one(folder: Path, maps: Mapping[int, tuple[SegmentIds, Sequence[bool]]]) -> Path:
    """Write region maps (ids from 1, things first) and whether each region is a thing, by image."""
    for part in ("panoptic_seg_predictions", "mask_features", "sem_seg_features"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(6)
    annotations = []
    for number, (ids, things) in maps.items():
        name = f"{number:012d}.png"
        Image.fromarray(ids_to_rgb(ids.astype(np.int32))).save(folder / "panoptic_seg_predictions" / name)
        segments = [{"id": n, "category_id": 1 if thing else 193} for n, thing in enumerate(things, 1)]
        annotations.append({"image_id": number, "file_name": name, "segments_info": segments})
        count = sum(things)
        features = torch.randn(count, 4, 2, 2, generator=generator)
        torch.save(features, folder / "mask_features" / f"{number}.pth")
        logits = torch.randn(len(things) - count, 6, 10, generator=generator)
        torch.save(logits, folder / "sem_seg_features" / f"{number}.pth")
    content = {"categories": CATEGORIES, "annotations": annotations}
    (folder / "predictions.json").write_text(json.dumps(content))
    return folder
