"""The contract of a method: encode, ground, loss. What keeps it is trained, saved, run and measured alike.

`docs/extending.md` shows a small one. PPMN is one implementation, `ppmn.baselines` has others.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.config import MethodConfig, Precision
from ppmn.model.preprocess import Preprocess
from ppmn.model.pyramid import Features, ImageEncoder, Pyramid
from ppmn.model.text import Queries, TextEncoder, Tokens
from ppmn.types import Span


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """The precision that a network is to be run in on a device."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@dataclass(frozen=True)
class BatchTargets:
    """What the maps of a batch are compared with, one row per query."""

    Y: Tensor  # (M, h', w')
    valid: Tensor | None  # (M, h', w'); None where padding counts
    absent: Tensor  # bool (M,), what the phrase names is not in the image
    single: Tensor  # bool (M,), the phrase means one thing
    thing: Tensor  # bool (M,), the phrase means things, not stuff

    def to(self, device: torch.device, dtype: torch.dtype) -> "BatchTargets":
        """The same on another device."""
        valid = None if self.valid is None else self.valid.to(device, dtype)
        flags = (flag.to(device) for flag in (self.absent, self.single, self.thing))
        return BatchTargets(self.Y.to(device, dtype), valid, *flags)

    def inside(self, token_stride: int) -> Tensor:
        """How much of each token the masks cover, relative to the token they cover most: (M, n).

        A token is `token_stride` pixels of the masks wide.
        """
        covered = fn.avg_pool2d(self.Y[:, None], token_stride).flatten(1)
        return covered / covered.amax(1, keepdim=True).clamp(min=1e-6)

    @property
    def pixels(self) -> float:
        """How many pixels count, over all rows."""
        return float(self.Y.numel() if self.valid is None else self.valid.sum(dtype=torch.float64))


@dataclass(frozen=True)
class SegmentTargets:
    """All annotated segments of one image at the stride of the maps, for methods with `uses_segments`."""

    masks: Tensor  # bool (K, h', w')
    instance: Tensor  # bool (K,), one thing
    crowd: Tensor  # bool (K,), things of unknown number; what is neither is stuff
    members: Tensor  # bool (P, K), the segments of each phrase
    valid: Tensor  # bool (h', w'), pixels that are labelled, or known to be of no category
    complete: bool  # whether what is not annotated is not in the image
    has_stuff: bool  # whether stuff is annotated

    def to(self, device: torch.device) -> "SegmentTargets":
        """The same on another device."""
        names = ("masks", "instance", "crowd", "members", "valid")
        tensors = {name: getattr(self, name).to(device) for name in names}
        return replace(self, **tensors)


@dataclass(frozen=True)
class TrainingBatch:
    """What a method computes its loss from: a batch of one process, or a part of it."""

    images: Sequence[Tensor] | Sequence[Features]  # resized images, or what `feature_encoder` made of them
    captions: Sequence[Tokens]
    per_image: Sequence[int]  # captions of each image
    words: Sequence[Tensor] | None  # outputs of a frozen text encoder for each caption, where cached
    targets: BatchTargets
    segments: Sequence[SegmentTargets]  # of each image; empty unless the method has `uses_segments`
    pixels: float  # that count, over all rows of the whole step: of all parts and processes
    rows: float  # of targets in the whole step
    size: float  # images in the whole step
    precision: Precision

    @property
    def cached(self) -> bool:
        """Whether `images` holds features."""
        return isinstance(self.images[0], Mapping)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision that the network is to be run in; losses are in single precision."""
        return autocast(self.targets.Y.device, self.precision)


@dataclass(frozen=True)
class MethodLoss:
    """The loss of a batch, and the terms of it that the log shows."""

    total: Tensor
    terms: Mapping[str, float]


class Method(nn.Module):
    """A network that grounds phrases, from encoders of any kind.

    A method overrides `encode`, `ground` and `loss`. It is built as `Kind(image_encoder, text_encoder,
    config)`, where `config` is of `config_type`.
    """

    config_type: ClassVar[type[MethodConfig]]
    uses_segments: bool = False  # whether `loss` reads all segments of the images
    config: MethodConfig

    def __init__(self, image_encoder: ImageEncoder, text_encoder: TextEncoder, config: MethodConfig) -> None:
        super().__init__()
        self.config = config
        self.image_encoder = image_encoder
        self.preprocess = Preprocess(config.short_side, config.long_side, image_encoder.multiple)
        self.text_encoder = text_encoder

    @property
    def feature_encoder(self) -> Any:
        """What computes the features that training caches: an `ImageEncoder`, here the image encoder."""
        return self.image_encoder

    @property
    def target_scale(self) -> int:
        """How many pixels of a target lie along a pixel of a map."""
        return 1

    def tokenize(self, caption: str, spans: Sequence[Span]) -> Tokens:
        """What `ground` needs of a caption and its phrases."""
        return self.text_encoder.tokenize(caption, spans)

    def pyramid(self, images: Sequence[Tensor] | Sequence[Features]) -> Pyramid:
        """The feature pyramids of resized images, or of the outputs of a frozen image encoder."""
        if isinstance(images[0], Mapping):
            return self.image_encoder.pyramid(cast(Sequence[Features], images))
        return self.image_encoder(cast(Sequence[Tensor], images))

    def encode(self, pyramid: Any) -> Any:
        """The image side, which is the same for all captions.

        Args:
            pyramid: What the image encoder returns for a batch, a `Pyramid`.

        Returns:
            Anything that `ground` takes, with a method `single(index)` for one image of it.
        """
        raise NotImplementedError

    def ground(
        self,
        encoded: Any,
        captions: Sequence[Tokens],
        *,
        per_image: Sequence[int] | None = None,
        words: Sequence[Tensor] | None = None,
    ) -> tuple[Any, Queries]:
        """The phrase side.

        Args:
            encoded: What `encode` returned.
            captions: What `tokenize` returned, for the captions of all images in order.
            per_image: How many of the captions belong to each image; None: one each.
            words: Outputs of the text encoder for each caption, where they are known.

        Returns:
            `ppmn.model.network.Maps`, the last of whose `H` has logits (M, h, w) at the stride of the image
            encoder, and the M queries that they belong to.
        """
        raise NotImplementedError

    def loss(self, batch: TrainingBatch, network: nn.Module) -> MethodLoss:
        """The loss of a batch, divided by the numbers of the whole step (`batch.rows` and so on).

        Args:
            batch: Images, captions and targets.
            network: This module, or what several processes wrap it in: what is trained must be called by
                `network(...)`, which runs `forward`.
        """
        raise NotImplementedError

    def prepare(self, *, initialised: bool) -> None:
        """Called before training: parts of the method itself that stay as they are take no gradient.

        `initialised` says that its weights are those of a trained model.
        """

    def trains_on(self, name: str) -> bool:
        """Whether an image, by the name of its file without ending, is among those trained on."""
        return True
