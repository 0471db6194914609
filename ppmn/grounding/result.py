"""The result of grounding: a mask, a score and a box for every phrase. Data only; formats.py writes it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppmn.grounding.maps import MapGeometry, MaskStats
from ppmn.phrases.rules import Phrase
from ppmn.types import Box, Map, Mask, Span


@dataclass(frozen=True)
class Round:
    """One round of the network: the map of every phrase, and its pixels that the next round attends to.

    Attributes:
        maps: Probabilities at the network's stride, (P, H, W).
        pixels: For each phrase (n, 2), x and y in the image; empty if no round follows.
    """

    maps: Map
    pixels: tuple[NDArray[np.float32], ...] = ()


class MaskedMap:
    """A map, cut at a threshold. What has the image's size is computed on access, from the small map."""

    map: Map
    geometry: MapGeometry
    threshold: float

    @property
    def mask(self) -> Mask:
        """Where the response exceeds the threshold, (height, width) of the image."""
        return self.geometry.mask(self.map, self.threshold)

    @property
    def response(self) -> Map:
        """Probability of every pixel, (height, width) of the image."""
        return self.geometry.response(self.map)

    @property
    def mean_response(self) -> float:
        """Mean response inside the mask; 0 where the mask is empty."""
        return self._stats.mean_response

    @property
    def area(self) -> int:
        """Number of pixels in the mask."""
        return self._stats.area

    @property
    def box(self) -> Box | None:
        """The tight box (x, y, width, height) of the mask; None where it is empty."""
        return self._stats.box

    @cached_property
    def _stats(self) -> MaskStats:
        return self.geometry.stats(self.map, self.threshold)


@dataclass(frozen=True, eq=False)
class Instance(MaskedMap):
    """One of the objects that a phrase names; its mask lies inside that of the phrase.

    Attributes:
        map: Its response at the network's stride, (H, W), nowhere above that of the phrase.
        geometry: How the map lies on the image.
        threshold: The response above which a pixel is in the mask.
    """

    map: Map = field(repr=False)
    geometry: MapGeometry = field(repr=False)
    threshold: float


@dataclass(frozen=True, eq=False)
class PhrasePrediction(MaskedMap):
    """A phrase and where it is.

    Attributes:
        phrase: The phrase in the caption.
        map: Probabilities at the network's stride, (H, W).
        geometry: How the map lies on the image.
        threshold: The response above which a pixel is in the mask; 1, so that the mask is empty, where the
            phrase is probably absent or the caption seems not to be English, unless such masks are kept.
        presence: The probability that what the phrase names is in the image; None where the model does not
            say.
        absent: Whether it is probably not in the image: `presence` is below the model's limit.
        foreign: Whether the caption seems not to be English, so that nothing that is said of the phrase can
            be relied on.
        expected_iou: The IoU that the mask is expected to have with the true one; None where the model is
            not calibrated.
        instances: The objects of a phrase that names several, one mask each; their number is the count. The
            mask itself where a phrase names one, nothing where the mask is empty.
    """

    phrase: Phrase
    map: Map = field(repr=False)
    geometry: MapGeometry = field(repr=False)
    threshold: float
    presence: float | None = None
    absent: bool = False
    foreign: bool = False
    expected_iou: float | None = None
    instances: tuple[Instance, ...] = field(default=(), repr=False)

    @property
    def text(self) -> str:
        """The words of the phrase."""
        return self.phrase.text

    @property
    def span(self) -> Span:
        """Start and end of the phrase in the caption, in characters."""
        return self.phrase.start, self.phrase.end

    @property
    def score(self) -> float:
        """The expected IoU of the mask, or its mean response where the model is not calibrated.

        0 where the mask is empty.
        """
        if self.expected_iou is None or not self.area:
            return self.mean_response
        return self.expected_iou


@dataclass(frozen=True, eq=False)
class Grounding:
    """A caption grounded on an image: a sequence of phrase predictions.

    Attributes:
        image: The image upright, in RGB.
        caption: The caption without brackets; spans count in it.
        phrases: One prediction per phrase.
        threshold: The response above which a pixel is in a mask.
        skipped: Phrases that were not grounded, because they name no object.
        rounds: Maps and pixels of rounds 0 to L and, of a model that points, the drawn map, if kept.
        image_name: The file the image was read from, if it was.
        model: The name of the model.
        warnings: Sentences that say why the answer may be wrong, such as a caption that is not English.
        calibrated: Whether scores are expected IoUs; otherwise they are mean responses.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "a dog and a cat")
        >>> len(grounding), grounding[1].text, grounding[1].mask.shape
        (2, 'cat', (48, 64))
    """

    image: Image.Image = field(repr=False)
    caption: str
    phrases: tuple[PhrasePrediction, ...]
    threshold: float
    skipped: tuple[Phrase, ...] = ()
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    image_name: str | None = None
    model: str = ""
    warnings: tuple[str, ...] = ()
    calibrated: bool = False

    def __len__(self) -> int:
        return len(self.phrases)

    def __iter__(self) -> Iterator[PhrasePrediction]:
        return iter(self.phrases)

    def __getitem__(self, index: int) -> PhrasePrediction:
        return self.phrases[index]
