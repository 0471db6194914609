"""Ground captions on images: an image is encoded once, then any number of captions are grounded on it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as fn
from PIL import Image
from torch import Tensor

from ppmn.config import DINOv2Config
from ppmn.errors import InputError
from ppmn.grounding.device import place
from ppmn.grounding.encoded_image import EncodedImage
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.result import Grounding
from ppmn.images import ImageInput, read_image
from ppmn.model.bfloat16 import has_bfloat16
from ppmn.model.folder import load_model, model_folder
from ppmn.model.network import PPMN, PixelFeatures
from ppmn.model.preprocess import Preprocess
from ppmn.model.pyramid import group_by_shape
from ppmn.phrases.caption import parse_caption
from ppmn.types import Map, Span

_BATCH_SIZE = 4  # images that are encoded together


def load(name_or_folder: str | Path = "compact", *, device: str | None = None) -> "Grounder":
    """Load a model that is ready to ground captions.

    Args:
        name_or_folder: A model that ships with ppmn ("compact"), a folder that `ppmn train` or
            `ppmn convert` wrote, or a model on the Hugging Face hub ("owner/name", "owner/name@revision").
        device: "cpu", "cuda", "cuda:1" or "mps"; None takes the CUDA GPU where there is one.

    Returns:
        A grounder with the model on its device.

    Raises:
        InputError: There is no such model, its files do not fit together, or the device cannot be used.

    Examples:
        >>> import ppmn
        >>> ppmn.load("compact", device="cpu").name
        'compact'
    """
    folder = model_folder(name_or_folder)
    return Grounder(load_model(folder), device=device, name=folder.name)


class Grounder:
    """A model that grounds captions on images; `load` makes one.

    Args:
        model: The network.
        device: "cpu", "cuda", "cuda:1" or "mps"; None takes the CUDA GPU where there is one.
        name: The name that results carry.

    Raises:
        InputError: The device cannot be used.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> grounder = ppmn.load("compact", device="cpu")
        >>> grounding = grounder.ground(Image.new("RGB", (64, 48), "skyblue"), "The sky above a house.")
        >>> [phrase.text for phrase in grounding]
        ['sky', 'house']
    """

    def __init__(self, model: PPMN, *, device: str | None = None, name: str = "model") -> None:
        self.device = place(model, device)
        self.model = model.eval()
        self.name = name

    @property
    def threshold(self) -> float:
        """The response above which a pixel is in a mask, unless a caller gives another."""
        return self.model.config.threshold

    @property
    def calibrated(self) -> bool:
        """Whether scores are expected IoUs; otherwise they are mean responses."""
        return bool(self.model.config.calibration.score_weights)

    @property
    def preprocess(self) -> Preprocess:
        """How images are resized for the model."""
        return self.model.preprocess

    def encode(self, image: ImageInput) -> EncodedImage:
        """Encode an image, so that captions can be grounded on it.

        Args:
            image: A file name, the bytes of a file, a PIL image or a NumPy array (H, W[, 3 or 4]).

        Returns:
            The encoded image.

        Raises:
            InputError: The image cannot be read.

        Examples:
            >>> import ppmn
            >>> from PIL import Image
            >>> encoded = ppmn.load("compact", device="cpu").encode(Image.new("RGB", (64, 48)))
            >>> encoded.ground("Two dogs on the grass.")[0].text
            'Two dogs'
        """
        return next(self._encode([image]))

    def encode_batch(self, images: Sequence[ImageInput]) -> list[EncodedImage]:
        """Encode several images, in batches; each as `encode` would.

        Args:
            images: Images as `encode` takes them.

        Returns:
            The encoded images, in order.

        Raises:
            InputError: One of the images cannot be read.

        Examples:
            >>> import ppmn
            >>> from PIL import Image
            >>> images = [Image.new("RGB", (64, 48)), Image.new("RGB", (32, 32))]
            >>> [encoded.image.size for encoded in ppmn.load("compact", device="cpu").encode_batch(images)]
            [(64, 48), (32, 32)]
        """
        return list(self._encode(images))

    def ground(
        self,
        image: ImageInput,
        caption: str,
        *,
        threshold: float | None = None,
        spans: Sequence[Span] | None = None,
        keep_rounds: bool = False,
        all_phrases: bool = False,
        keep_absent: bool = False,
    ) -> Grounding:
        """Ground a caption on an image: `encode`, then `EncodedImage.ground`.

        Args:
            image: An image as `encode` takes it.
            caption: A text of any length; [brackets] may mark its phrases.
            threshold: The response above which a pixel is in a mask; None takes the model's own.
            spans: Start and end of each phrase in characters; None finds the noun phrases.
            keep_rounds: Keep the maps and pixels of every round.
            all_phrases: Also ground phrases that name no object ("background").
            keep_absent: Keep the masks of phrases that are probably not in the image.

        Returns:
            A mask, a score and a box for every phrase.

        Raises:
            InputError: The image cannot be read, or the caption has no phrase to ground.

        Examples:
            >>> import ppmn
            >>> from PIL import Image
            >>> grounder = ppmn.load("compact", device="cpu")
            >>> grounding = grounder.ground(Image.new("RGB", (64, 48)), "two dogs", spans=[(4, 8)])
            >>> grounding[0].text, grounding[0].mask.shape
            ('dogs', (48, 64))
        """
        return self.encode(image).ground(
            caption,
            threshold=threshold,
            spans=spans,
            keep_rounds=keep_rounds,
            all_phrases=all_phrases,
            keep_absent=keep_absent,
        )

    def ground_batch(
        self,
        images: Sequence[ImageInput],
        captions: Sequence[str],
        *,
        threshold: float | None = None,
        spans: Sequence[Sequence[Span] | None] | None = None,
        keep_rounds: bool = False,
        all_phrases: bool = False,
        keep_absent: bool = False,
    ) -> list[Grounding]:
        """Ground one caption on each of several images, which are encoded in batches.

        Args:
            images: Images as `encode` takes them.
            captions: As many captions.
            threshold: As in `ground`.
            spans: As in `ground`, one entry per caption.
            keep_rounds: As in `ground`.
            all_phrases: As in `ground`.
            keep_absent: As in `ground`.

        Returns:
            One grounding per image, in order.

        Raises:
            InputError: The numbers differ, an image cannot be read, or a caption has no phrase to ground.

        Examples:
            >>> import ppmn
            >>> from PIL import Image
            >>> images = [Image.new("RGB", (64, 48)), Image.new("RGB", (32, 32))]
            >>> grounder = ppmn.load("compact", device="cpu")
            >>> [len(grounding) for grounding in grounder.ground_batch(images, ["a dog", "a cat on grass"])]
            [1, 2]
        """
        if isinstance(captions, str) or len(captions) != len(images):
            given = "one text" if isinstance(captions, str) else str(len(captions))
            raise InputError(f"{len(images)} images need as many captions, not {given}")
        if spans is not None and len(spans) != len(images):
            raise InputError(f"{len(images)} captions need as many lists of spans, not {len(spans)}")
        marked = spans if spans is not None else [None] * len(images)
        parsed = [
            parse_caption(caption, spans=own, all_phrases=all_phrases)
            for caption, own in zip(captions, marked, strict=True)
        ]
        return [
            encoded.ground_phrases(
                caption, threshold=threshold, keep_rounds=keep_rounds, keep_absent=keep_absent
            )
            for encoded, caption in zip(self._encode(images), parsed, strict=True)
        ]

    def response_maps(self, image: ImageInput, caption: str, spans: Sequence[Span]) -> Iterator[Map]:
        """Post-processed probabilities of each span in the image's own size, computed one at a time.

        Args:
            image: An image as `encode` takes it.
            caption: A text of any length, without brackets.
            spans: Start and end of each phrase in characters.

        Yields:
            One map per span, (height, width).

        Raises:
            InputError: The image cannot be read, or the text encoder has no word piece for a span.
        """
        encoded = self.encode(image)
        for response in encoded.responses(caption, spans):
            yield encoded.geometry.response(response)

    def quarter_maps(self, image: ImageInput, caption: str, spans: Sequence[Span]) -> Iterator[Map]:
        """As `response_maps`, but at a quarter of the padded input, as the authors' code measures."""
        queries, maps = self.encode(image).maps(caption, spans)
        H = fn.interpolate(maps.H[-1][None], scale_factor=2.0, mode="bilinear")[0]
        yield from queries.phrase_maps(H.sigmoid()).cpu().numpy()

    def _encode(self, images: Sequence[ImageInput]) -> Iterator[EncodedImage]:
        # where padding counts, batch padding would change the features
        step = 1 if self.model.config.count_padding else _BATCH_SIZE
        for first in range(0, len(images), step):
            batch = [read_image(image) for image in images[first : first + step]]
            resized = [self.preprocess(image) for image in batch]
            encoded: dict[int, PixelFeatures] = {}
            for numbers in group_by_shape(resized):  # no padding, which would cost time and memory
                pixels = self._pixels([resized[number] for number in numbers])
                encoded |= {number: pixels.single(row) for row, number in enumerate(numbers)}
            for number, (image, tensor) in enumerate(zip(batch, resized, strict=True)):
                source = images[first + number]
                name = str(source) if isinstance(source, str | Path) else None
                geometry = self._geometry(image, tensor)
                yield EncodedImage(image, name, self.name, self.model, geometry, encoded[number])

    @torch.inference_mode()
    def _pixels(self, resized: Sequence[Tensor]) -> PixelFeatures:
        """The image side of the network for images of one size."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._uses_bfloat16()):
            pyramid = self.model.image_encoder(resized)
        return self.model.head.encode(pyramid.float())

    def _uses_bfloat16(self) -> bool:
        config = self.model.config.image
        wanted = isinstance(config, DINOv2Config) and config.precision == "bfloat16"
        return wanted and self.device == "cpu" and has_bfloat16()

    def _geometry(self, image: Image.Image, resized: Tensor) -> MapGeometry:
        encoder, (height, width) = self.model.image_encoder, resized.shape[1:]
        rows, columns = encoder.padded_size(height, width)
        stride = encoder.stride
        map_size, content_size = (rows // stride, columns // stride), (height / stride, width / stride)
        return MapGeometry(image.height, image.width, map_size, content_size)
