"""What grounding needs of a network, whichever runtime it runs on; all of it in numpy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppmn.config import DINOv2Config, MethodConfig
from ppmn.grounding.calibration import MapEvidence
from ppmn.grounding.maps import MapGeometry
from ppmn.model.preprocess import Preprocess
from ppmn.types import Map, Size, Span

RuntimeName = Literal["auto", "onnx", "torch"]
RuntimePrecision = Literal["auto", "float32"]


@dataclass(frozen=True)
class RawMaps:
    """Raw matching maps of M queries, which are phrases or the word pieces of phrases.

    Attributes:
        H: The logits of every round, L + 1 of (M, H, W); a model that points has one more, the drawn one.
        indices: The pixels that each round attends to, L of (M, S), flat.
        sizes: The number of queries of each phrase.
        presence: The logit that what a query names is in the image, (M,); None: the model does not say.
        certainty: How much of what a query points at lies in its drawn mask, (M,); None as `presence`.
        somewhere: The logit that a query points into the image, (M,); None: it is `presence`.
    """

    H: list[Map]
    indices: list[NDArray[np.int64]]
    sizes: tuple[int, ...]
    presence: Map | None = None
    certainty: Map | None = None
    somewhere: Map | None = None

    def phrase_maps(self, maps: Map) -> Map:
        """Maps of phrases: the mean of the maps of their queries, (M, H, W) -> (P, H, W)."""
        if all(size == 1 for size in self.sizes):
            return maps
        return np.stack([rows.mean(0) for rows in np.split(maps, np.cumsum(self.sizes)[:-1])])

    def probabilities(self, number: int = -1) -> Map:
        """The responses (P, H, W) of phrases in one round, by default the last."""
        return self.phrase_maps(sigmoid(self.H[number]))

    def evidence(self) -> MapEvidence:
        """What is said about phrases, from which answers are made."""
        last, before = self.probabilities(-1), self.probabilities(-2 if len(self.H) > 1 else -1)
        if self.presence is None or self.certainty is None:
            return MapEvidence(last, before)
        somewhere = self.presence if self.somewhere is None else self.somewhere
        said = (x.astype(float) for x in (self.presence, self.certainty, somewhere))
        return MapEvidence(last, before, *said)


def sigmoid(x: Map) -> Map:
    """Probabilities of logits."""
    with np.errstate(over="ignore"):  # of a large negative logit, whose probability is 0
        return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def allows_reduced_precision(config: MethodConfig) -> bool:
    """Whether images may be encoded in less than single precision; the model's configuration says so."""
    return isinstance(config.image, DINOv2Config) and config.image.precision == "bfloat16"


@runtime_checkable
class Runtime(Protocol):
    """A network that is ready to run; it may be used from several threads at once."""

    name: str  # "onnx" or "torch"
    device: str
    precision: str  # of the image side
    config: MethodConfig
    preprocess: Preprocess
    stride: int  # of the maps, in pixels of the resized image
    token_stride: int  # of the tokens that queries point at, in pixels of the maps

    def padded_size(self, height: int, width: int) -> Size:
        """The size to which a resized image is padded."""
        ...

    def encode(self, images: Sequence[NDArray[np.uint8]]) -> list[Any]:
        """The features of resized images (3, h, w)."""
        ...

    def ground(self, features: Any, caption: str, spans: Sequence[Span]) -> RawMaps:
        """The maps of the spans of a caption on the features of one image."""
        ...

    def draw_objects(self, features: Any, points: NDArray[np.intp]) -> Map:
        """The objects at tokens (n,), flat, of an image, whatever they are: probabilities (n, H, W)."""
        ...

    def check_before_steps(self, check: Callable[[], None]) -> Callable[[], None]:
        """Call `check` before every step, which it stops by raising; returns what ends that."""
        ...

    def nbytes(self, features: Any) -> int:
        """How much memory the features of one image take."""
        ...


def map_geometry(runtime: Runtime, image: Image.Image) -> MapGeometry:
    """How the maps of a network lie on an image."""
    height, width = runtime.preprocess.size(image.height, image.width)
    rows, columns = runtime.padded_size(height, width)
    stride = runtime.stride
    map_size, content_size = (rows // stride, columns // stride), (height / stride, width / stride)
    return MapGeometry(image.height, image.width, map_size, content_size)
