"""The image encoder: ResNet and feature pyramid, in detectron2's form and in torchvision's."""

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.config import ResNetConfig
from ppmn.errors import InputError
from ppmn.model.pyramid import Features, Pyramid

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
COARSEST = 32  # stride of p5


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics and affine."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


class Conv(nn.Module):
    """Convolution without bias, norm, and ReLU where asked."""

    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int, norm: str, relu: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.norm = FrozenBatchNorm(c_out) if norm == "frozen" else nn.GroupNorm(min(32, c_out // 4), c_out)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return x.relu_() if self.relu else x


class Block(nn.Module):
    """A residual block: two 3x3 (18, 34 layers) or 1x1, 3x3, 1x1."""

    def __init__(self, c_in: int, width: int, c_out: int, stride: int, config: ResNetConfig) -> None:
        super().__init__()
        norm = config.norm
        if config.depth < 50:
            convs = [Conv(c_in, width, 3, stride, norm), Conv(width, c_out, 3, 1, norm, relu=False)]
        else:
            first, second = (stride, 1) if config.form == "detectron2" else (1, stride)
            convs = [Conv(c_in, width, 1, first, norm), Conv(width, width, 3, second, norm)]
            convs.append(Conv(width, c_out, 1, 1, norm, relu=False))
        self.convs = nn.Sequential(*convs)
        changes = stride > 1 or c_in != c_out
        self.shortcut = Conv(c_in, c_out, 1, stride, norm, relu=False) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return (self.convs(x) + self.shortcut(x)).relu_()


class ResNetFPN(nn.Module):
    """Photos -> p2..p5."""

    stride = 8  # of F, in pixels of the resized image
    multiple = 1
    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ResNetConfig, count_padding: bool) -> None:
        super().__init__()
        if config.depth not in BLOCKS:
            raise InputError(f"a ResNet of depth {config.depth} is not known; there are 18, 34, 50 and 101")
        self.config, self.count_padding = config, count_padding
        self.channels = config.channels
        self.stem = Conv(3, config.width, 7, 2, config.norm)
        self.stages, self.lateral, self.output = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        c_in, expansion = config.width, 1 if config.depth < 50 else 4
        for index, blocks in enumerate(BLOCKS[config.depth]):
            width = config.width * 2**index
            c_out, stride = width * expansion, 1 if index == 0 else 2
            stage = [
                Block(c_in if b == 0 else c_out, width, c_out, stride if b == 0 else 1, config)
                for b in range(blocks)
            ]
            self.stages.append(nn.Sequential(*stage))
            self.lateral.append(nn.Conv2d(c_out, config.channels, 1))
            self.output.append(nn.Conv2d(config.channels, config.channels, 3, padding=1))
            c_in = c_out
        detectron2 = config.form == "detectron2"
        mean = (103.530, 116.280, 123.675) if detectron2 else (0.485 * 255, 0.456 * 255, 0.406 * 255)
        deviation = (1.0, 1.0, 1.0) if detectron2 else (0.229 * 255, 0.224 * 255, 0.225 * 255)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(3, 1, 1), persistent=False)

    def padded_size(self, height: int, width: int) -> tuple[int, int]:
        """The part of the batch that is a prepared photo's own: it is padded to a multiple of 32."""
        return -(-height // COARSEST) * COARSEST, -(-width // COARSEST) * COARSEST

    def forward(self, photos: Sequence[Tensor]) -> Pyramid:
        """Prepared photos of any sizes -> their pyramids in one batch."""
        if self.count_padding:
            padded = [self.padded_size(p.shape[1], p.shape[2]) for p in photos]
            largest = (max(h for h, _ in padded) // COARSEST, max(w for _, w in padded) // COARSEST)
            return Pyramid(self.levels(self.stack(photos, largest)))
        return self.pyramid(self.features(photos))

    def features(self, photos: Sequence[Tensor]) -> list[Features]:
        """What a frozen encoder makes of each photo alone: its levels, photos of equal size at a time."""
        together = defaultdict(list)
        for index, photo in enumerate(photos):
            height, width = self.padded_size(photo.shape[1], photo.shape[2])
            together[height // COARSEST, width // COARSEST].append(index)
        alone: dict[int, Features] = {}
        for grid, indices in together.items():
            levels = self.levels(self.stack([photos[i] for i in indices], grid))
            for index, *mine in zip(indices, *(level.unbind() for level in levels), strict=True):
                alone[index] = {f"p{n}": level for n, level in enumerate(mine, 2)}
        return [alone[index] for index in range(len(photos))]

    def pyramid(self, features: Sequence[Features]) -> Pyramid:
        """A batch of what `features` made, or of what was kept of it."""
        return Pyramid.of([[levels[f"p{n}"] for n in range(2, 6)] for levels in features])

    def frozen_part(self) -> tuple[nn.Module, str]:
        """The module that `features` runs, and what else decides its output."""
        return self, repr(self.config)

    def feature_count(self, height: int, width: int) -> int:
        """How many numbers `features` makes of a resized image of this size."""
        height, width = self.padded_size(height, width)
        return sum(height * width // stride**2 * self.channels for stride in (4, 8, 16, 32))

    def stack(self, photos: Sequence[Tensor], grid: tuple[int, int]) -> Tensor:
        """Normalise, then pad with zeros at the bottom and right to a grid of 32-pixel cells."""
        height, width = grid[0] * COARSEST, grid[1] * COARSEST
        rows = []
        for photo in photos:
            x = photo.to(self.mean.device, self.mean.dtype)
            x = x.flip(0) if self.config.form == "detectron2" else x  # RGB -> BGR
            x = (x - self.mean) / self.deviation
            rows.append(fn.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])))
        return torch.stack(rows)  # (B, 3, height, width)

    def levels(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The feature pyramid: top-down, each level doubled and added to the next finer one."""
        x = fn.max_pool2d(self.stem(x), 3, 2, 1)
        lateral = []
        for stage, project in zip(self.stages, self.lateral, strict=True):
            x = stage(x)
            lateral.append(project(x))
        merged = lateral[-1]
        levels = [self.output[3](merged)]
        for index in (2, 1, 0):
            merged = lateral[index] + fn.interpolate(merged, scale_factor=2.0)
            levels.insert(0, self.output[index](merged))
        p2, p3, p4, p5 = levels
        return p2, p3, p4, p5
