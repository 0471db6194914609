"""The network on torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules.module import register_module_forward_pre_hook

from ppmn.errors import InputError
from ppmn.grounding.device import place
from ppmn.grounding.runtime import RawMaps, RuntimePrecision, allows_reduced_precision
from ppmn.model.bfloat16 import bfloat16_is_faster
from ppmn.model.method import Method
from ppmn.model.network import PPMN, Maps
from ppmn.model.pointing import TOKEN_STRIDE
from ppmn.model.pyramid import group_by_shape
from ppmn.model.text import Queries
from ppmn.types import Map, Size, Span

_working: ContextVar["TorchRuntime | None"] = ContextVar("_working", default=None)  # in this thread
_hooks = Lock()  # torch numbers its hooks without one


class TorchRuntime:
    """A `Runtime` on torch, on a CPU or a GPU.

    Args:
        model: The network.
        device: "cpu", "cuda" or "cuda:1"; None takes the GPU where there is one.
        precision: "auto" encodes images in bfloat16 where the model allows it and that is faster.
        threads: Threads of an operation on the CPU, for the whole process; None leaves torch's own number.

    Raises:
        InputError: The device cannot be used.
    """

    name = "torch"

    def __init__(
        self,
        model: Method,
        *,
        device: str | None = None,
        precision: RuntimePrecision = "auto",
        threads: int | None = None,
    ) -> None:
        self.device = place(model, device)
        self.model = model.eval()
        if threads is not None:
            torch.set_num_threads(threads)
        self.config, self.preprocess = model.config, model.preprocess
        self.stride, self.token_stride = model.image_encoder.stride, TOKEN_STRIDE
        reduced = precision == "auto" and allows_reduced_precision(self.config)
        bfloat16 = reduced and self.device == "cpu" and bfloat16_is_faster()
        self.precision = "bfloat16" if bfloat16 else "float32"

    def padded_size(self, height: int, width: int) -> Size:
        """The size to which a resized image is padded."""
        return self.model.image_encoder.padded_size(height, width)

    def encode(self, images: Sequence[NDArray[np.uint8]]) -> list[Any]:
        """The features of resized images (3, h, w); those of one size are computed together."""
        tensors = [torch.from_numpy(image) for image in images]
        encoded: dict[int, Any] = {}
        for numbers in group_by_shape(tensors):  # no padding, which would cost time and memory
            pixels = self.pixels([tensors[number] for number in numbers])
            encoded |= {number: pixels.single(row) for row, number in enumerate(numbers)}
        return [encoded[number] for number in range(len(images))]

    @torch.inference_mode()
    def pixels(self, images: Sequence[torch.Tensor]) -> Any:
        """The image side of the network for images of one size."""
        with self._work():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
                pyramid = self.model.image_encoder(images)
            return self.model.encode(pyramid.float())

    @torch.inference_mode()
    def ground(self, features: Any, caption: str, spans: Sequence[Span]) -> RawMaps:
        """The maps of the spans of a caption on the features of one image."""
        with self._work():
            maps, queries = self.model.ground(features, [self.model.tokenize(caption, spans)])
        return raw_maps(maps, queries)

    @torch.inference_mode()
    def draw_objects(self, features: Any, points: NDArray[np.intp]) -> Map:
        """The objects at tokens (n,), flat, of an image, whatever they are: probabilities (n, H, W)."""
        pointing = self.model.head.pointing if isinstance(self.model, PPMN) else None
        if pointing is None or features.tokens is None:
            raise InputError("only a model that points draws objects")
        at = torch.as_tensor(points, device=features.tokens.tokens.device)
        with self._work():
            drawn: Map = pointing.draw_objects(at, features.tokens, [len(at)]).sigmoid().cpu().numpy()
        return drawn

    def check_before_steps(self, check: Callable[[], None]) -> Callable[[], None]:
        """Call `check` before every layer run here, which its exception stops; returns what ends that."""

        def before(*_: object) -> None:
            if _working.get() is self:  # the hook is called for every network, in every thread
                check()

        with _hooks:
            hook = register_module_forward_pre_hook(before)

        def end() -> None:
            with _hooks:
                hook.remove()

        return end

    @contextmanager
    def _work(self) -> Iterator[None]:
        """Mark what runs in this thread as the work of this runtime."""
        before = _working.set(self)
        try:
            yield
        finally:
            _working.reset(before)

    def nbytes(self, features: Any) -> int:
        """How much memory the features of one image take."""
        return sum(tensor.nbytes for tensor in _tensors(features))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of what a method encodes an image as: dataclasses and tuples of tensors."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        yield from (t for field in fields(value) for t in _tensors(getattr(value, field.name)))
    elif isinstance(value, tuple):
        yield from (t for part in value for t in _tensors(part))


def raw_maps(maps: Maps, queries: Queries) -> RawMaps:
    """What the network returned, as arrays."""
    H, indices = ([tensor.cpu().numpy() for tensor in kept] for kept in (maps.H, maps.indices))
    somewhere = None if maps.pointed is None else maps.pointed.somewhere
    said = (
        None if tensor is None else tensor.cpu().numpy()
        for tensor in (maps.presence, maps.certainty, somewhere)
    )
    return RawMaps(H, indices, queries.sizes, *said)
