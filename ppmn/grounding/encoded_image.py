"""An encoded image, on which any number of captions can be grounded."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.grounding.answers import postprocess_maps, predict_phrases
from ppmn.grounding.instances import Cells
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.result import Grounding, Round
from ppmn.grounding.runtime import RawMaps, Runtime
from ppmn.phrases.caption import Caption, parse_caption
from ppmn.types import Map, Span


@dataclass(frozen=True)
class EncodedImage:
    """An image that `Grounder.encode` has encoded; grounding a caption on it takes little time.

    Attributes:
        image: The image upright, in RGB.
        name: The file it was read from, if it was.
        model_name: The name of the model that encoded it.
    """

    image: Image.Image
    name: str | None
    model_name: str
    runtime: Runtime = field(repr=False)
    geometry: MapGeometry = field(repr=False)
    features: Any = field(repr=False)

    @property
    def nbytes(self) -> int:
        """How much memory the features of the image take."""
        return self.runtime.nbytes(self.features)

    def ground(
        self,
        caption: str,
        *,
        threshold: float | None = None,
        spans: Sequence[Span] | None = None,
        keep_rounds: bool = False,
        all_phrases: bool = False,
        keep_absent: bool = False,
    ) -> Grounding:
        """Ground a caption: its noun phrases, or what brackets or `spans` mark.

        Args:
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
            InputError: The caption has no phrase to ground, or the threshold is not between 0 and 1.

        Examples:
            >>> import ppmn
            >>> from PIL import Image
            >>> image = Image.new("RGB", (64, 48), "skyblue")
            >>> encoded = ppmn.load("compact", device="cpu").encode(image)
            >>> encoded.ground("a [blue sky] and [white clouds]")[1].text
            'white clouds'
        """
        parsed = parse_caption(caption, spans=spans, all_phrases=all_phrases)
        return self.ground_phrases(
            parsed, threshold=threshold, keep_rounds=keep_rounds, keep_absent=keep_absent
        )

    def ground_phrases(
        self,
        caption: Caption,
        *,
        threshold: float | None = None,
        keep_rounds: bool = False,
        keep_absent: bool = False,
    ) -> Grounding:
        """Ground a caption whose phrases are known.

        Args:
            caption: What `parse_caption` returns.
            threshold: As in `ground`.
            keep_rounds: As in `ground`.
            keep_absent: As in `ground`.

        Returns:
            A mask, a score and a box for every phrase.

        Raises:
            InputError: The threshold is not between 0 and 1.

        Examples:
            >>> import numpy as np
            >>> import ppmn
            >>> from ppmn.phrases.caption import parse_caption
            >>> encoded = ppmn.load("compact", device="cpu").encode(np.zeros((48, 64, 3), np.uint8))
            >>> len(encoded.ground_phrases(parse_caption("a dog and a cat")))
            2
        """
        if threshold is None:
            threshold = self.runtime.config.threshold
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold is {threshold}; it must lie between 0 and 1")
        maps, config = self.maps(caption.text, caption.spans), self.runtime.config
        points = isinstance(config, ModelConfig) and config.pointing
        phrases = predict_phrases(
            caption.phrases,
            maps.evidence(),
            self.geometry,
            self.runtime.config,
            threshold=threshold,
            foreign=bool(caption.warning),
            keep_absent=keep_absent,
            draw_objects=self.draw_objects if points else None,
        )
        return Grounding(
            self.image,
            caption.text,
            phrases,
            threshold,
            skipped=caption.skipped,
            rounds=self._rounds(maps) if keep_rounds else (),
            image_name=self.name,
            model=self.model_name,
            warnings=(caption.warning,) if caption.warning else (),
            calibrated=bool(self.runtime.config.calibration.score_weights),
        )

    def maps(self, caption: str, spans: Sequence[Span]) -> RawMaps:
        """The raw matching maps H of every round, for research.

        Args:
            caption: A text of any length, without brackets.
            spans: Start and end of each phrase in characters.

        Returns:
            The maps of the queries of the spans, with the pixels of each round.

        Raises:
            InputError: The text encoder has no word piece for a span.

        Examples:
            >>> import numpy as np
            >>> import ppmn
            >>> encoded = ppmn.load("compact", device="cpu").encode(np.zeros((48, 64, 3), np.uint8))
            >>> maps = encoded.maps("a dog", [(2, 5)])
            >>> len(maps.H)
            4
        """
        return self.runtime.ground(self.features, caption, spans)

    def raw_responses(self, caption: str, spans: Sequence[Span]) -> Map:
        """Probabilities of each span at the network's stride, before post-processing.

        Args:
            caption: As in `maps`.
            spans: As in `maps`.

        Returns:
            One map per span, (P, H, W).

        Raises:
            InputError: As in `maps`.

        Examples:
            >>> import numpy as np
            >>> import ppmn
            >>> encoded = ppmn.load("compact", device="cpu").encode(np.zeros((48, 64, 3), np.uint8))
            >>> encoded.raw_responses("a dog", [(2, 5)]).shape
            (1, 84, 112)
        """
        return self.maps(caption, spans).probabilities()

    def responses(self, caption: str, spans: Sequence[Span]) -> Map:
        """Probabilities of each span at the network's stride, post-processed as the model asks.

        Args:
            caption: As in `maps`.
            spans: As in `maps`.

        Returns:
            One map per span, (P, H, W).

        Raises:
            InputError: As in `maps`.

        Examples:
            >>> import numpy as np
            >>> import ppmn
            >>> encoded = ppmn.load("compact", device="cpu").encode(np.zeros((48, 64, 3), np.uint8))
            >>> encoded.responses("a dog", [(2, 5)]).max() <= 1
            np.True_
        """
        return postprocess_maps(self.raw_responses(caption, spans), self.runtime.config)

    def draw_objects(self, cells: Cells) -> Map:
        """The objects at cells of a map, whatever they are: probabilities (n, H, W)."""
        columns = self.geometry.map_size[1] // self.runtime.token_stride
        tokens = np.asarray(cells) // self.runtime.token_stride
        return self.runtime.draw_objects(self.features, tokens[:, 0] * columns + tokens[:, 1])

    def _rounds(self, maps: RawMaps) -> tuple[Round, ...]:
        responses = [maps.probabilities(number) for number in range(len(maps.H))]  # (P, H, W) each
        rows = np.split(np.arange(sum(maps.sizes)), np.cumsum(maps.sizes)[:-1])  # of each phrase
        points = [tuple(self.geometry.points(indices[own]) for own in rows) for indices in maps.indices]
        points += [()] * (len(responses) - len(points))  # none after the last round
        return tuple(Round(response, own) for response, own in zip(responses, points, strict=True))
