"""What goes over the wire: the requests' and answers' fields, and a grounding made into them."""

import base64
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ppmn.grounding.maps import encode_map
from ppmn.grounding.render import OPACITY
from ppmn.grounding.result import Grounding, PhrasePrediction, Round
from ppmn.images import encode_rle
from ppmn.phrases.rules import Phrase
from ppmn.serve.image_cache import CachedImage

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Span = Annotated[
    list[int], Field(min_length=2, max_length=2, description="start and end, in characters of the caption")
]


class Problem(BaseModel):
    error: str = Field(description="one sentence that says what is wrong")


class CaptionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    caption: str = Field(description="a narrative; [brackets] mark phrases where no spans do")
    spans: list[Span] | None = Field(None, description="the phrases; without them they are found")


class GroundRequest(CaptionRequest):
    threshold: Share | None = Field(None, description="what a response must pass; default: the model's own")
    all_phrases: bool = Field(False, description="also phrases that name no object")
    masks: bool = Field(True, description="whether the answer has each mask in COCO's run-length form")
    rounds: bool = Field(False, description="whether the answer has the maps and pixels of every round")


class FileRequest(CaptionRequest):
    threshold: Share | None = None
    all_phrases: bool = False
    opacity: Share = Field(OPACITY, description="of the masks in overlay.png")
    outline: bool = Field(True, description="whether the masks in overlay.png have outlines")


class FoundPhrase(BaseModel):
    text: str
    span: Span
    head: str
    plural: bool
    abstract: bool = Field(description="it names no object and is left out unless it is asked for")


class Phrases(BaseModel):
    caption: str = Field(description="without brackets; what the spans count in")
    phrases: list[FoundPhrase]


class EncodedImageInfo(BaseModel):
    id: str = Field(description="for /api/looks/{id}/...; kept while there is room")
    width: int
    height: int
    grid: list[int] = Field(description="rows and columns of a map")
    covered: list[float] = Field(description="of these the photo's own, which may end within a cell")


class Map8(BaseModel):
    """Responses at the network's stride: low + (high - low) * byte / 255, row by row."""

    low: float
    high: float
    data: str = Field(description="base64, one byte a cell")


class RLE(BaseModel):
    size: list[int]
    counts: str


class PhraseResult(BaseModel):
    text: str
    span: Span
    head: str
    plural: bool
    score: float = Field(description="mean response inside the mask; 0 where it is empty")
    area: int = Field(description="pixels of the mask")
    box: list[int] | None = Field(description="x, y, width, height; null where the mask is empty")
    map: Map8
    rle: RLE | None = Field(None, description="the mask in COCO's form, where it was asked for")


class RoundMaps(BaseModel):
    maps: list[Map8] = Field(description="one a phrase")
    pixels: list[list[list[float]]] = Field(
        description="of each phrase the pixels that the next round looks at; none at the end"
    )


class Grounded(EncodedImageInfo):
    model: str
    caption: str
    threshold: float
    phrases: list[PhraseResult]
    skipped: list[str] = Field(description="phrases that name no object")
    rounds: list[RoundMaps] | None = Field(None, description="H0 to HL, where they were asked for")


class Sample(BaseModel):
    name: str
    caption: str


class About(BaseModel):
    version: str
    model: str
    threshold: float
    opacity: float
    palette: list[str] = Field(description="colours of the phrases, in order and again")
    limits: dict[str, int]
    samples: list[Sample]


def found_phrase(phrase: Phrase) -> FoundPhrase:
    return FoundPhrase(
        text=phrase.text,
        span=[phrase.start, phrase.end],
        head=phrase.head,
        plural=phrase.plural,
        abstract=phrase.abstract,
    )


def image_info(kept: CachedImage) -> EncodedImageInfo:
    frame = kept.frame
    return EncodedImageInfo(
        id=kept.id,
        width=frame.width,
        height=frame.height,
        grid=[*frame.map_size],
        covered=[*frame.content_size],
    )


def grounded(kept: CachedImage, grounding: Grounding, masks: bool) -> Grounded:
    return Grounded(
        **image_info(kept).model_dump(),
        model=grounding.model,
        caption=grounding.caption,
        threshold=grounding.threshold,
        phrases=[_phrase(phrase, masks) for phrase in grounding],
        skipped=[phrase.text for phrase in grounding.skipped],
        rounds=[_round(step) for step in grounding.rounds] or None,
    )


def _phrase(phrase: PhrasePrediction, mask: bool) -> PhraseResult:
    return PhraseResult(
        text=phrase.text,
        span=[*phrase.span],
        head=phrase.phrase.head,
        plural=phrase.phrase.plural,
        score=round(phrase.score, 6),
        area=phrase.area,
        box=None if phrase.box is None else [*phrase.box],
        map=map8(phrase.map),
        rle=RLE(**encode_rle(phrase.mask)) if mask else None,
    )


def _round(step: Round) -> RoundMaps:
    return RoundMaps(
        maps=[map8(response) for response in step.maps],
        pixels=[np.round(points, 1).tolist() for points in step.pixels],
    )


def map8(response: NDArray[np.float32]) -> Map8:
    """Eight bits over the map's own range, so that a map of little contrast keeps its shape."""
    low, high, data = encode_map(response)
    return Map8(low=low, high=high, data=base64.b64encode(data).decode("ascii"))
