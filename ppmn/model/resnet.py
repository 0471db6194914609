"""The paper's image encoder: ResNet-FPN, in detectron2's form and in torchvision's."""

from collections.abc import Sequence

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.config import ResNetConfig
from ppmn.errors import InputError
from ppmn.model.pyramid import Features, Pyramid, group_by_shape
from ppmn.types import Size

BLOCKS_PER_STAGE = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
_P5_STRIDE = 32
_MEAN_AND_DEVIATION = {
    "detectron2": ((103.530, 116.280, 123.675), (1.0, 1.0, 1.0)),  # BGR
    "torchvision": ((0.485 * 255, 0.456 * 255, 0.406 * 255), (0.229 * 255, 0.224 * 255, 0.225 * 255)),
}


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics, scale and shift."""

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
    """Convolution without bias, norm, and ReLU if `relu`."""

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
    """A residual block: two 3x3 convolutions (depths 18 and 34), or 1x1, 3x3, 1x1."""

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
    """Images -> p2..p5."""

    stride = 8  # of F, in pixels of the resized image
    multiple = 1
    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ResNetConfig, count_padding: bool) -> None:
        super().__init__()
        if config.depth not in BLOCKS_PER_STAGE:
            raise InputError(f"depth is {config.depth}; a ResNet has a depth of 18, 34, 50 or 101")
        self.config, self.count_padding = config, count_padding
        self.channels = self.token_channels = config.channels
        self.stem = Conv(3, config.width, 7, 2, config.norm)
        self.stages, self.lateral, self.output = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        c_in, expansion = config.width, 1 if config.depth < 50 else 4
        for index, blocks in enumerate(BLOCKS_PER_STAGE[config.depth]):
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
        # on the CPU also where the module is built on the meta device: no file holds these
        mean, deviation = torch.tensor(_MEAN_AND_DEVIATION[config.form], device="cpu").view(2, 3, 1, 1)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("deviation", deviation, persistent=False)

    def padded_size(self, height: int, width: int) -> Size:
        """The next multiples of the stride of p5, to which each image is padded."""
        return -(-height // _P5_STRIDE) * _P5_STRIDE, -(-width // _P5_STRIDE) * _P5_STRIDE

    def forward(self, images: Sequence[Tensor]) -> Pyramid:
        """Resized images of any sizes -> their pyramids in one batch."""
        if self.count_padding:
            sizes = [self.padded_size(*image.shape[1:]) for image in images]
            largest = max(height for height, _ in sizes), max(width for _, width in sizes)
            return Pyramid(self.levels(torch.stack([self.prepare(image, largest) for image in images])))
        return self.pyramid(self.features(images))

    def features(self, images: Sequence[Tensor]) -> list[Features]:
        """p2..p5 of each image alone; images of one size are computed together."""
        prepared = [self.prepare(image, self.padded_size(*image.shape[1:])) for image in images]
        features: dict[int, Features] = {}
        for indices in group_by_shape(prepared):
            levels = self.levels(torch.stack([prepared[i] for i in indices]))
            for index, *own in zip(indices, *(level.unbind() for level in levels), strict=True):
                features[index] = {f"p{n}": level for n, level in enumerate(own, 2)}
        return [features[index] for index in range(len(images))]

    def pyramid(self, features: Sequence[Features]) -> Pyramid:
        """A batch of what `features` returned, or of what was cached of it."""
        return Pyramid.of([[levels[f"p{n}"] for n in range(2, 6)] for levels in features])

    def frozen_part(self) -> tuple[nn.Module, str]:
        """The module that `features` runs, and what else decides its output."""
        return self, repr(self.config)

    def feature_count(self, height: int, width: int) -> int:
        """How many numbers `features` returns for a resized image of this size."""
        height, width = self.padded_size(height, width)
        return sum(height * width // stride**2 * self.channels for stride in (4, 8, 16, 32))

    def prepare(self, image: Tensor, size: Size) -> Tensor:
        """Normalise an image and pad it with zeros at the bottom and right, (3, *size)."""
        x = image.to(self.mean.device, self.mean.dtype)
        x = x.flip(0) if self.config.form == "detectron2" else x  # RGB -> BGR
        x = (x - self.mean) / self.deviation
        return fn.pad(x, (0, size[1] - x.shape[2], 0, size[0] - x.shape[1]))

    def levels(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The feature pyramid: top-down, each level upsampled and added to the next finer one."""
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
