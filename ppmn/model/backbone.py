"""Any image backbone of transformers with a feature pyramid: one scale (DINOv2, DINOv3) or several (Swin).

A folder that holds a trained model has the backbone's configuration in `image/`; its tensors are in the
model's own file.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING

from ppmn.config import BackboneConfig
from ppmn.errors import InputError
from ppmn.model.dinov2 import Adapter
from ppmn.model.pyramid import Features, Pyramid, group_by_shape
from ppmn.types import Size

_PROBE = 8  # patches along the side of the image by which strides are found


class LateralPyramid(nn.Module):
    """Maps of four strides, each twice the last -> p2..p5: 1x1 convolutions, and sums from coarse to fine."""

    def __init__(self, widths: Sequence[int], channels: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, channels, 1) for width in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in widths)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        summed: list[Tensor] = []
        for conv, level in zip(reversed(self.lateral), reversed(maps), strict=True):
            x = conv(level)
            summed.append(x if not summed else x + fn.interpolate(summed[-1], scale_factor=2.0))
        return tuple(conv(x) for conv, x in zip(self.smooth, reversed(summed), strict=True))


class BackboneFPN(nn.Module):
    """Images -> p2..p5. Frozen but for the pyramid and the last `config.trainable_layers` layers.

    Args:
        backbone: A backbone of transformers.
        config: Its configuration here.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, backbone: Any, config: BackboneConfig) -> None:
        super().__init__()
        self.config, self.channels, self.backbone = config, config.channels, backbone
        rgb = torch.tensor([config.mean, config.deviation]).view(2, 3, 1, 1) * 255
        self.register_buffer("mean", rgb[0], persistent=False)
        self.register_buffer("deviation", rgb[1], persistent=False)
        patch = _patch_size(backbone)
        strides, widths = self._probe(_PROBE * patch)
        self.several = len(set(strides)) > 1
        if self.several:
            if strides != [strides[0] * 2**n for n in range(4)]:
                raise InputError(f"the maps of {config.source} have strides {strides}, not four that double")
            self.adapter: nn.Module = LateralPyramid(widths, config.channels)
            self.stride, self.multiple = strides[1], strides[3]
            self.token_channels = config.channels  # pointing reads p4
        else:
            if strides[0] % 2:
                raise InputError(f"the patches of {config.source} have {strides[0]} pixels, an odd number")
            self.adapter = Adapter(len(widths), config.channels, widths[0])
            self.stride, self.multiple = strides[0] // 2, 2 * strides[0]
            self.token_channels = len(widths) * widths[0]

    @classmethod
    def from_source(cls, config: BackboneConfig, weights: bool = True) -> "BackboneFPN":
        """From a folder or a hub name; without `weights` the backbone's tensors are not initialised."""
        if not config.source:
            raise InputError("image.source is empty; name a folder or a model of the hub")
        try:
            shape = AutoConfig.from_pretrained(config.source, trust_remote_code=False)
            kind = MODEL_FOR_BACKBONE_MAPPING.get(type(shape), None)
            if kind is None:
                raise InputError(f"{config.source} is a {shape.model_type}, which is no backbone")
            shape.out_features, shape.out_indices = None, _out_layers(shape, config)
            if weights:
                backbone, report = kind.from_pretrained(config.source, config=shape, output_loading_info=True)
                _check_loaded(report, config.source)
            else:
                with no_init_weights():
                    backbone = kind(shape)
        except InputError:
            raise
        except Exception as error:  # each of a folder's files has errors of its own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"no image backbone could be loaded from {config.source} ({reason})") from error
        return cls(backbone, config)

    def padded_size(self, height: int, width: int) -> Size:
        """The next multiples; a resized image has such sides already."""
        side = self.multiple
        return math.ceil(height / side) * side, math.ceil(width / side) * side

    def forward(self, images: Sequence[Tensor]) -> Pyramid:
        """Resized images of any sizes -> their pyramids in one batch."""
        return self.pyramid(self.features(images))

    def features(self, images: Sequence[Tensor]) -> list[Features]:
        """The maps of the backbone for each image."""
        found: dict[int, Features] = {}
        for indices in group_by_shape(images):
            x = torch.stack([images[i].to(self.mean.device, self.mean.dtype) for i in indices])
            maps = self.backbone((x - self.mean) / self.deviation).feature_maps
            for row, index in enumerate(indices):
                found[index] = {f"map{n}": level[row] for n, level in enumerate(maps)}
        return [found[index] for index in range(len(images))]

    def pyramid(self, features: Sequence[Features]) -> Pyramid:
        """The trained part: what `features` returned, or what was cached of it -> p2..p5."""
        single: dict[int, tuple[Tensor, ...]] = {}
        for indices in group_by_shape([own["map0"] for own in features]):
            count = len(features[indices[0]])
            maps = [torch.stack([features[i][f"map{n}"] for i in indices]) for n in range(count)]
            levels = self.adapter(maps) if self.several else self.adapter(torch.stack(maps, 1))
            single |= zip(indices, zip(*(level.unbind() for level in levels), strict=True), strict=True)
        return Pyramid.of([single[index] for index in range(len(features))])

    def set_trained(self, trained: bool) -> None:
        """Give gradients to the last layers, or to all of the backbone where that is all of its layers."""
        self.backbone.requires_grad_(False)
        layers = _layers(self.backbone)
        if trained and self.config.trainable_layers >= len(layers):
            self.backbone.requires_grad_(True)
        elif trained and self.config.trainable_layers:
            nn.ModuleList(layers[-self.config.trainable_layers :]).requires_grad_(True)

    def frozen_part(self) -> tuple[nn.Module, str]:
        """The module that `features` runs, and what else decides its output; the pyramid does not."""
        backbone: nn.Module = self.backbone
        kind = f"{self.backbone.config.model_type} {self.backbone.out_features}"
        return backbone, f"{kind} {self.config.mean} {self.config.deviation}"

    def feature_count(self, height: int, width: int) -> int:
        """How many numbers `features` returns for a resized image of this size."""
        strides, widths = self._probe(_PROBE * _patch_size(self.backbone))
        return sum(c * (height // s) * (width // s) for s, c in zip(strides, widths, strict=True))

    @torch.no_grad()
    def _probe(self, side: int) -> tuple[list[int], list[int]]:
        """Strides and channels of the backbone's maps, found by running it on a small image."""
        image = torch.zeros(1, 3, side, side, device=self.mean.device, dtype=self.mean.dtype)
        training = self.backbone.training
        maps = self.backbone.eval()(image).feature_maps
        self.backbone.train(training)
        return [side // level.shape[-1] for level in maps], [level.shape[1] for level in maps]


def _patch_size(backbone: Any) -> int:
    patch = getattr(backbone.config, "patch_size", 4)
    return int(patch[0] if isinstance(patch, list | tuple) else patch)


def _layers(backbone: nn.Module) -> list[nn.Module]:
    """The layers or stages of a backbone: its first list of modules, by depth in the tree of modules."""
    lists = [(name.count("."), m) for name, m in backbone.named_modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise InputError(f"{type(backbone).__name__} has no list of layers: it cannot be trained in part")
    return list(min(lists, key=lambda item: item[0])[1])


def _out_layers(shape: Any, config: BackboneConfig) -> list[int]:
    """The layers whose maps are used: as configured; else of four stages all, of many layers the last."""
    last = len(shape.stage_names) - 1
    layers = list(config.layers) or (list(range(1, 5)) if last == 4 else [last])
    if not all(0 <= layer <= last for layer in layers):
        raise InputError(f"image.layers is {tuple(layers)}; {config.source} has layers 0 to {last}")
    return layers


def _check_loaded(report: dict[str, Any], source: str) -> None:
    """Refuse a source that lacks tensors, which would stay random; norms of the maps begin as they are."""
    missing = sorted(str(k) for k in (*report["missing_keys"], *report["mismatched_keys"]))
    missing = [name for name in missing if "norm" not in name]
    if missing:
        raise InputError(f"{source} lacks {len(missing)} tensors of its backbone, {missing[0]} among them")
