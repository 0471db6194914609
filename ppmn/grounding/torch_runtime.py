"""The network on torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ppmn.config import DINOv2Config
from ppmn.errors import InputError
from ppmn.grounding.graphs import flatten_features
from ppmn.grounding.runtime import RawMaps
from ppmn.model.network import PPMN, PixelFeatures
from ppmn.model.pyramid import group_by_shape
from ppmn.types import Size, Span


class TorchRuntime:
    """A `Runtime` on torch, on a CPU or a GPU.

    Args:
        model: The network.
        device: "cpu", "cuda" or "cuda:1"; None takes the GPU where there is one.
        threads: Threads of an operation on the CPU, for the whole process; None leaves torch's own number.

    Raises:
        InputError: The device cannot be used.
    """

    name = "torch"

    def __init__(self, model: PPMN, *, device: str | None = None, threads: int | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.model = model.to(self.device).eval()
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"the device {self.device} cannot be used ({error})") from error
        if threads is not None:
            torch.set_num_threads(threads)
        self.config, self.preprocess = model.config, model.preprocess
        self.stride = model.image_encoder.stride

    def padded_size(self, height: int, width: int) -> Size:
        """The size to which a resized image is padded."""
        return self.model.image_encoder.padded_size(height, width)

    def encode(self, images: Sequence[NDArray[np.uint8]]) -> list[PixelFeatures]:
        """The features of resized images (3, h, w); those of one size are computed together."""
        tensors = [torch.from_numpy(image) for image in images]
        encoded: dict[int, PixelFeatures] = {}
        for numbers in group_by_shape(tensors):  # no padding, which would cost time and memory
            pixels = self.pixels([tensors[number] for number in numbers])
            encoded |= {number: pixels.single(row) for row, number in enumerate(numbers)}
        return [encoded[number] for number in range(len(images))]

    @torch.inference_mode()
    def pixels(self, images: Sequence[torch.Tensor]) -> PixelFeatures:
        """The image side of the network for images of one size."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._uses_bfloat16()):
            pyramid = self.model.image_encoder(images)
        return self.model.head.encode(pyramid.float())

    @torch.inference_mode()
    def ground(self, features: PixelFeatures, caption: str, spans: Sequence[Span]) -> RawMaps:
        """The maps of the spans of a caption on the features of one image."""
        maps, queries = self.model.ground(features, [self.model.text_encoder.tokenize(caption, spans)])
        presence = None if maps.presence is None else maps.presence.cpu().numpy()
        H, indices = ([tensor.cpu().numpy() for tensor in kept] for kept in (maps.H, maps.indices))
        return RawMaps(H, indices, queries.sizes, presence)

    def nbytes(self, features: PixelFeatures) -> int:
        """How much memory the features of one image take."""
        return sum(tensor.nbytes for tensor in flatten_features(features))

    def _uses_bfloat16(self) -> bool:
        config = self.config.image
        wanted = isinstance(config, DINOv2Config) and config.precision == "bfloat16"
        return wanted and self.device == "cpu" and has_bfloat16()


def has_bfloat16() -> bool:
    """Whether the processor has bfloat16 instructions; without them bfloat16 is slower than float32."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # missing before torch 2.8
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))
