"""Ground captions on images: an image is encoded once, then any number of captions are grounded on it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ppmn.errors import InputError
from ppmn.grounding.encoded_image import EncodedImage
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.open_runtime import open_runtime
from ppmn.grounding.result import Grounding
from ppmn.grounding.runtime import Runtime, RuntimeName, RuntimePrecision, map_geometry, sigmoid
from ppmn.images import ImageInput, read_image
from ppmn.model.locate import model_folder
from ppmn.model.preprocess import Preprocess
from ppmn.phrases.caption import parse_caption
from ppmn.types import Map, Span

if TYPE_CHECKING:
    from ppmn.model.method import Method

_BATCH_SIZE = 4  # images that are encoded together


def load(
    name_or_folder: str | Path = "compact",
    *,
    device: str | None = None,
    runtime: RuntimeName = "auto",
    precision: RuntimePrecision = "auto",
    threads: int | None = None,
) -> "Grounder":
    """Load a model that is ready to ground captions.

    Args:
        name_or_folder: A model that ships with ppmn ("compact"), a folder that `ppmn train` or
            `ppmn convert` wrote, or a model on the Hugging Face hub ("owner/name", "owner/name@revision").
        device: "cpu", "cuda", "cuda:1" or "mps"; None takes the CUDA GPU where there is one.
        runtime: "onnx" runs the model's graphs on the CPU by ONNX Runtime, "torch" the network itself;
            "auto" takes torch where a GPU is used or the model has no graphs, otherwise ONNX Runtime.
        precision: "float32", or "auto": where the model allows it, images are encoded in 8 bits on ONNX
            Runtime, and in bfloat16 on torch where that is faster.
        threads: Processor threads of an operation, on torch for the whole process; None leaves the choice to
            the runtime.

    Returns:
        A grounder with the model on its device.

    Raises:
        InputError: There is no such model, its files do not fit together, or the device or the runtime
            cannot be used.

    Examples:
        >>> import ppmn
        >>> ppmn.load("compact", device="cpu").name
        'compact'
    """
    folder = model_folder(name_or_folder)
    chosen = open_runtime(folder, device=device, runtime=runtime, precision=precision, threads=threads)
    return Grounder(chosen, name=folder.name)


class Grounder:
    """A model that grounds captions on images; `load` makes one.

    Args:
        model: The network, or a runtime that it is ready in.
        device: Of a network: "cpu", "cuda", "cuda:1" or "mps"; None takes the CUDA GPU where there is one.
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

    def __init__(self, model: "Method | Runtime", *, device: str | None = None, name: str = "model") -> None:
        if isinstance(model, Runtime):
            self.runtime = model
        else:
            from ppmn.grounding.torch_runtime import TorchRuntime

            self.runtime = TorchRuntime(model, device=device)
        self.name = name

    @property
    def model(self) -> "Method":
        """The network, where it runs on torch."""
        model: Method | None = getattr(self.runtime, "model", None)
        if model is None:
            raise InputError(f"{self.name} runs on ONNX Runtime; only runtime='torch' has a network")
        return model

    @property
    def device(self) -> str:
        """Where the model runs."""
        return self.runtime.device

    @property
    def threshold(self) -> float:
        """The response above which a pixel is in a mask, unless a caller gives another."""
        return self.runtime.config.threshold

    @property
    def calibrated(self) -> bool:
        """Whether scores are expected IoUs; otherwise they are mean responses."""
        return bool(self.runtime.config.calibration.score_weights)

    @property
    def preprocess(self) -> Preprocess:
        """How images are resized for the model."""
        return self.runtime.preprocess

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
            keep_absent: Keep the masks of phrases that are probably not in the image, and of a caption that
                seems not to be English.

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
        maps = self.encode(image).maps(caption, spans)
        height, width = maps.H[-1].shape[1:]
        double = MapGeometry(2 * height, 2 * width, (height, width), (height, width))
        H = np.stack([double.response(row) for row in maps.H[-1]])
        yield from maps.phrase_maps(sigmoid(H))

    def _encode(self, images: Sequence[ImageInput]) -> Iterator[EncodedImage]:
        # where padding counts, batch padding would change the features
        step = 1 if self.runtime.config.count_padding else _BATCH_SIZE
        for first in range(0, len(images), step):
            batch = [read_image(image) for image in images[first : first + step]]
            features = self.runtime.encode([self.preprocess.resize(image) for image in batch])
            for number, (image, own) in enumerate(zip(batch, features, strict=True), first):
                source = images[number]
                name = str(source) if isinstance(source, str | Path) else None
                yield EncodedImage(
                    image, name, self.name, self.runtime, map_geometry(self.runtime, image), own
                )
