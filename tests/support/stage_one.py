"""Output of stage one as detectron2 leaves it, small and with random features, and a small second stage."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer

from ppmn.baselines.proposals import Proposals, tight_boxes
from ppmn.baselines.two_stage import RELEASED_PREFIX, TwoStage, TwoStageConfig
from ppmn.data.panoptic import PanopticImage
from ppmn.images import ids_to_rgb
from ppmn.types import SegmentIds

CATEGORIES = [{"id": 1, "name": "person", "isthing": 1}, {"id": 193, "name": "grass", "isthing": 0}]
REGION_SIZE = 16
CAPTION = "two dogs on the green grass and a xylophone, the red ball"
SPANS = [(0, 8), (16, 27), (34, 43), (49, 57)]


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


def some_proposals(count: int, seed: int = 0) -> Proposals:
    """Vertical stripes with random features."""
    generator = torch.Generator().manual_seed(seed)
    ids = np.repeat(np.arange(1, count + 1, dtype=np.int32), 3)[None].repeat(4, 0)
    features = torch.randn(count, REGION_SIZE, generator=generator)
    return Proposals(ids, features, torch.tensor(tight_boxes(ids, count)).view(-1, 4).float())


def released_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the released checkpoint, from its description."""
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, out: int, into: int) -> None:
        shapes.update({f"{name}.weight": (out, into), f"{name}.bias": (out,)})

    def norm(name: str) -> None:
        shapes.update({f"{name}.weight": (768,), f"{name}.bias": (768,)})

    def attention(inner: str, outer: str) -> None:
        for part in ("query", "key", "value"):
            linear(f"{inner}.{part}", 768, 768)
        linear(f"{outer}.dense", 768, 768)
        norm(f"{outer}.LayerNorm")

    def ffn(first: str, second: str) -> None:
        linear(f"{first}.dense", 3072, 768)
        linear(f"{second}.dense", 768, 3072)
        norm(f"{second}.LayerNorm")

    for name, rows in (("word", 30522), ("position", 512), ("token_type", 2)):
        shapes[f"embeddings.{name}_embeddings.weight"] = (rows, 768)
    norm("embeddings.LayerNorm")
    linear("pooler.dense", 768, 768)
    linear("encoder.visn_fc.visn_fc", 768, 50176)
    linear("encoder.visn_fc.box_fc", 768, 4)
    norm("encoder.visn_fc.visn_layer_norm")
    norm("encoder.visn_fc.box_layer_norm")
    for layer in [f"layer.{n}" for n in range(12)] + [f"single_layers.{n}" for n in range(3)]:
        attention(f"encoder.{layer}.attention.self", f"encoder.{layer}.attention.output")
        ffn(f"encoder.{layer}.intermediate", f"encoder.{layer}.output")
    for n in range(5):
        cross = f"encoder.cross_layers.{n}"
        attention(f"{cross}.visual_attention.att", f"{cross}.visual_attention.output")
        for side in ("lang", "visn"):
            attention(f"{cross}.{side}_self_att.self", f"{cross}.{side}_self_att.output")
            ffn(f"{cross}.{side}_inter", f"{cross}.{side}_output")
    return {f"{RELEASED_PREFIX}{name}": shape for name, shape in shapes.items()}
