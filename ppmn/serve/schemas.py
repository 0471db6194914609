"""The JSON of requests and responses."""

from dataclasses import asdict
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ppmn.grounding.maps import encode_map
from ppmn.grounding.render import OPACITY
from ppmn.grounding.result import Grounding, MaskedMap, PhrasePrediction, Round
from ppmn.images import encode_rle
from ppmn.phrases.rules import Phrase
from ppmn.serve.image_cache import CachedImage

_Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Number = Annotated[int, Field(ge=1, le=1_000_000)]
_SpanList = Annotated[
    list[int], Field(min_length=2, max_length=2, description="start and end, in characters")
]


class ErrorMessage(BaseModel):
    error: str = Field(description="one sentence that says what is wrong")


class CaptionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    caption: str = Field(description="a caption; [brackets] mark its phrases if there are no spans")
    spans: list[_SpanList] | None = Field(None, description="the phrases; null finds the noun phrases")


class GroundingRequest(CaptionRequest):
    threshold: _Fraction | None = Field(
        None, description="the response above which a pixel is in a mask; null takes the model's own"
    )
    all_phrases: bool = Field(False, description="also ground phrases that name no object")
    keep_absent: bool = Field(
        False,
        description="keep the masks of phrases that are probably not in the image, and of a caption that "
        "seems not to be English",
    )


class GroundRequest(GroundingRequest):
    masks: bool = Field(True, description="include each mask in COCO's run-length encoding")
    keep_rounds: bool = Field(False, description="include the maps and pixels of every round")


class FileRequest(GroundingRequest):
    opacity: _Fraction = Field(OPACITY, description="of the masks in overlay.png")
    outline: bool = Field(True, description="outline the masks in overlay.png")
    instances: bool = Field(False, description="one annotation per object in coco.json")
    numbers: list[_Number] | None = Field(
        None,
        description="the number of each phrase, for its label, color and file name; null counts them from 1",
    )


class _PhraseWords(BaseModel):
    text: str
    span: _SpanList
    head: str
    plural: bool


class CaptionPhrase(_PhraseWords):
    abstract: bool = Field(description="it names no object, and is grounded with all_phrases only")


class CaptionPhrases(BaseModel):
    caption: str = Field(description="the caption without brackets, which the spans refer to")
    phrases: list[CaptionPhrase]
    warnings: list[str] = Field(
        description="why the phrases may be wrong, such as a caption that is not English"
    )


class ImageInfo(BaseModel):
    id: str = Field(description="for /api/images/{id}/...; valid while the image is in the cache")
    width: int
    height: int
    map_size: list[int] = Field(description="height and width of a map")
    content_size: list[float] = Field(description="the part of a map that the image covers, without padding")


class EncodedMap(BaseModel):
    """Responses at the network's stride: low + (high - low) * byte / 255, row by row."""

    low: float
    high: float
    data: str = Field(description="base64, one byte per pixel of the map")


class RunLengthMask(BaseModel):
    size: list[int]
    counts: str


class RegionResult(BaseModel):
    area: int = Field(description="pixels of the mask")
    box: list[int] | None = Field(description="x, y, width, height; null if the mask is empty")
    mean_response: float = Field(description="inside the mask; 0 if the mask is empty")
    map: EncodedMap
    rle: RunLengthMask | None = Field(None, description="the mask in COCO's encoding, if requested")


class PhraseResult(_PhraseWords, RegionResult):
    score: float = Field(description="expected IoU of the mask, or mean_response if not calibrated")
    presence: _Fraction | None = Field(
        None, description="probability that it is in the image; null if the model does not say"
    )
    absent: bool = Field(description="it is probably not in the image; the mask is empty unless it is kept")
    foreign: bool = Field(
        description="the caption seems not to be English; the mask is empty unless it is kept"
    )
    count: int = Field(description="number of objects; 0 if the mask is empty")
    instances: list[RegionResult] = Field(description="the objects, if there are several")


class RoundResult(BaseModel):
    maps: list[EncodedMap] = Field(description="one per phrase")
    pixels: list[list[list[float]]] = Field(
        description="x and y of the pixels of each phrase that the next round attends to; empty without one"
    )


class GroundingResult(ImageInfo):
    model: str
    caption: str
    threshold: float
    phrases: list[PhraseResult]
    skipped: list[str] = Field(description="phrases that name no object")
    warnings: list[str] = Field(
        description="why the answer may be wrong, such as a caption that is not English"
    )
    rounds: list[RoundResult] | None = Field(
        None, description="rounds 0 to L and, of a model that points, the drawn map, if requested"
    )


class SampleInfo(BaseModel):
    name: str
    caption: str


class ServerInfo(BaseModel):
    version: str
    model: str
    threshold: float
    calibrated: bool = Field(description="whether scores are expected IoUs; otherwise mean responses")
    opacity: float
    palette: list[str]
    limits: dict[str, int]
    samples: list[SampleInfo]


def caption_phrase(phrase: Phrase) -> CaptionPhrase:
    """A phrase found in a caption."""
    return CaptionPhrase(span=[phrase.start, phrase.end], **asdict(phrase))


def image_info(cached: CachedImage) -> ImageInfo:
    """The sizes of a cached image and of its maps."""
    return ImageInfo(id=cached.id, **asdict(cached.encoded.geometry))


def grounding_result(cached: CachedImage, grounding: Grounding, *, masks: bool) -> GroundingResult:
    """A grounding as the server returns it."""
    return GroundingResult(
        **image_info(cached).model_dump(),
        model=grounding.model,
        caption=grounding.caption,
        threshold=grounding.threshold,
        phrases=[_phrase_result(phrase, masks) for phrase in grounding],
        skipped=[phrase.text for phrase in grounding.skipped],
        warnings=[*grounding.warnings],
        rounds=[_round_result(step) for step in grounding.rounds] or None,
    )


def _phrase_result(phrase: PhrasePrediction, masks: bool) -> PhraseResult:
    several = phrase.instances if len(phrase.instances) > 1 else ()
    return PhraseResult(
        **asdict(phrase.phrase),
        **_region_result(phrase, masks).model_dump(),
        span=[*phrase.span],
        score=round(phrase.score, 6),
        presence=phrase.presence,
        absent=phrase.absent,
        foreign=phrase.foreign,
        count=len(phrase.instances),
        instances=[_region_result(instance, masks) for instance in several],
    )


def _region_result(region: MaskedMap, masks: bool) -> RegionResult:
    return RegionResult(
        area=region.area,
        box=None if region.box is None else [*region.box],
        mean_response=round(region.mean_response, 6),
        map=EncodedMap(**encode_map(region.map)),
        rle=RunLengthMask(**encode_rle(region.mask)) if masks else None,
    )


def _round_result(step: Round) -> RoundResult:
    return RoundResult(
        maps=[EncodedMap(**encode_map(response)) for response in step.maps],
        pixels=[np.round(points, 1).tolist() for points in step.pixels],
    )
