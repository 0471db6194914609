"""What the server does for its requests."""

import io
import json
import zipfile
from typing import Literal

from PIL import Image
from starlette.exceptions import HTTPException

from ppmn.errors import InputError
from ppmn.grounding.coco import to_coco, to_panoptic
from ppmn.grounding.formats import slug
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.page import to_html
from ppmn.grounding.render import cut_out, overlay
from ppmn.grounding.result import Grounding
from ppmn.images import encode_image_file, read_image
from ppmn.phrases.caption import parse_caption
from ppmn.phrases.language import language_warning
from ppmn.phrases.rules import find_phrases, parse_brackets
from ppmn.serve import schemas
from ppmn.serve.counters import Counters
from ppmn.serve.image_cache import CachedImage, ImageCache, image_id
from ppmn.serve.limits import Limits
from ppmn.serve.work_queue import WorkQueue, check_abandoned
from ppmn.types import Span

FileName = Literal[
    "overlay.png", "panoptic.png", "panoptic.json", "coco.json", "cutout.png", "cutouts.zip", "page.html"
]


class Service:
    """One model with its cache of encoded images and its queues."""

    def __init__(self, grounder: Grounder, limits: Limits) -> None:
        self.grounder = grounder
        self.limits = limits
        self.images = ImageCache(limits.images, limits.cache_mb * 1_000_000)
        self.model_queue = WorkQueue("model", limits.queue, limits.seconds)
        self.text_queue = WorkQueue("text", limits.queue, limits.seconds)  # does not wait for images
        self.counters = Counters(self.images, self.model_queue, self.text_queue)
        self._end_checks = grounder.runtime.check_before_steps(check_abandoned)

    def close(self) -> None:
        """End the worker threads."""
        self.model_queue.close()
        self.text_queue.close()
        self._end_checks()

    def encode(self, content: bytes) -> bytes:
        """Encode an image file, unless it is in the cache."""
        id = image_id(content)
        cached = self.images.get(id)
        if cached is None:
            image = read_image(content, max_pixels=self.limits.megapixels * 1_000_000)
            check_abandoned()
            cached = CachedImage(id, self.grounder.encode(image))
            check_abandoned()
            self.counters.encoded.inc()
            self.images.put(cached)
        return schemas.image_info(cached).model_dump_json().encode()

    def cached(self, id: str) -> CachedImage:
        """The image with this id, or HTTPException 404."""
        cached = self.images.get(id)
        if cached is None:
            raise HTTPException(404, "this image is not in the cache (any more); send it again")
        return cached

    def ground(self, cached: CachedImage, request: schemas.GroundRequest) -> bytes:
        """Ground a caption; the result as JSON."""
        grounding = self._ground(cached, request, keep_rounds=request.keep_rounds)
        return schemas.grounding_result(cached, grounding, masks=request.masks).model_dump_json().encode()

    def file(self, cached: CachedImage, name: FileName, request: schemas.FileRequest) -> bytes:
        """Ground a caption; the result as a file."""
        grounding, numbers = self._ground(cached, request), request.numbers
        if numbers is not None and len(numbers) != len(grounding):
            raise InputError(f"there are {len(numbers)} numbers for {len(grounding)} phrases")
        match name:
            case "overlay.png":
                opacity, outline = request.opacity, request.outline
                image = overlay(grounding, opacity=opacity, outline=outline, numbers=numbers)
            case "panoptic.png":
                image, _ = to_panoptic(grounding)
            case "panoptic.json":
                return json.dumps(to_panoptic(grounding)[1]).encode()
            case "coco.json":
                return json.dumps(to_coco(grounding, instances=request.instances)).encode()
            case "cutout.png":
                return _only_cutout(grounding)
            case "cutouts.zip":
                return _zipped(_cutouts(grounding, numbers))
            case "page.html":
                return to_html(grounding, numbers=numbers).encode()
        return _png(image)

    def phrases(self, request: schemas.CaptionRequest) -> bytes:
        """The noun phrases of a caption as JSON."""
        self.limits.check_caption(length=len(request.caption), phrases=len(request.spans or []))
        caption, spans = request.caption, _spans(request)
        if spans is None:
            caption, spans = parse_brackets(caption)
        found = [schemas.caption_phrase(phrase) for phrase in find_phrases(caption, spans=spans)]
        warning = language_warning(caption)
        answer = schemas.CaptionPhrases(caption=caption, phrases=found, warnings=[warning] if warning else [])
        return answer.model_dump_json().encode()

    def _ground(
        self, cached: CachedImage, request: schemas.GroundingRequest, keep_rounds: bool = False
    ) -> Grounding:
        self.limits.check_caption(length=len(request.caption))
        caption = parse_caption(request.caption, spans=_spans(request), all_phrases=request.all_phrases)
        self.limits.check_caption(phrases=len(caption.phrases))
        grounding = cached.encoded.ground_phrases(
            caption,
            threshold=request.threshold,
            keep_rounds=keep_rounds,
            keep_absent=request.keep_absent,
        )
        check_abandoned()
        self.counters.grounded.inc()
        return grounding


def _spans(request: schemas.CaptionRequest) -> list[Span] | None:
    if request.spans == []:
        raise InputError("spans is empty; mark at least one phrase, or leave it out")
    return None if request.spans is None else [(start, end) for start, end in request.spans]


def _png(image: Image.Image) -> bytes:
    return encode_image_file(image, "PNG", compress_level=1)


def _cutouts(grounding: Grounding, numbers: list[int] | None = None) -> dict[str, bytes]:
    """A PNG file with transparency for every phrase whose mask is not empty, by file name."""
    files = {}
    for number, phrase in zip(numbers or range(1, len(grounding) + 1), grounding, strict=True):
        check_abandoned()
        piece = cut_out(grounding.image, phrase)
        if piece is not None:
            files[f"{number:03d}_{slug(phrase.text)}.png"] = _png(piece)
    return files


def _only_cutout(grounding: Grounding) -> bytes:
    if len(grounding) != 1:
        raise InputError(f"cutout.png shows one phrase and there are {len(grounding)}; take cutouts.zip")
    files = _cutouts(grounding)
    if not files:
        raise InputError(f"the mask of {grounding[0].text!r} is empty, so there is nothing to cut out")
    return next(iter(files.values()))


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # PNG files are compressed already
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
