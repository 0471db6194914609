"""What the server does for a request, in the worker's thread."""

import io
import json
from dataclasses import dataclass
from enum import StrEnum

from PIL import Image

from ppmn.errors import InputError
from ppmn.grounding.formats import to_coco, to_panoptic
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.page import to_html
from ppmn.grounding.render import overlay
from ppmn.grounding.result import Grounding
from ppmn.images import read_image
from ppmn.phrases.caption import parse_caption
from ppmn.phrases.rules import find_phrases, parse_brackets
from ppmn.serve import schemas as answers
from ppmn.serve.counters import Metrics
from ppmn.serve.image_cache import CachedImage, ImageCache, image_id_of
from ppmn.serve.limits import Limits


class FileName(StrEnum):
    OVERLAY = "overlay.png"
    PANOPTIC = "panoptic.png"
    SEGMENTS = "panoptic.json"
    COCO = "coco.json"
    PAGE = "page.html"


FILES = {
    FileName.OVERLAY: "image/png",
    FileName.PANOPTIC: "image/png",
    FileName.SEGMENTS: "application/json",
    FileName.COCO: "application/json",
    FileName.PAGE: "text/html",
}


class ImageGoneError(Exception):
    """The photo is not in the cache."""


@dataclass(frozen=True)
class Service:
    grounder: Grounder
    limits: Limits
    looks: ImageCache
    metrics: Metrics

    def look(self, content: bytes) -> bytes:
        """EncodedImage at a photo, unless the same file is kept."""
        id = image_id_of(content)
        kept = self.looks.get(id)
        if kept is None:
            photo = read_image(content, max_pixels=self.limits.pixels * 1_000_000)
            kept = CachedImage(id, self.grounder.encode(photo))
            self.metrics.encoded.inc()
            self.looks.put(kept)
        return answers.image_info(kept).model_dump_json().encode()

    def kept(self, id: str) -> CachedImage:
        kept = self.looks.get(id)
        if kept is None:
            raise ImageGoneError("this photo is not kept (any more); send it again")
        return kept

    def ground(self, kept: CachedImage, asked: answers.GroundRequest) -> bytes:
        found = self._ground(kept, asked, asked.rounds)
        return answers.grounded(kept, found, asked.masks).model_dump_json().encode()

    def file(self, kept: CachedImage, name: FileName, asked: answers.FileRequest) -> bytes:
        found = self._ground(kept, asked)
        match name:
            case FileName.OVERLAY:
                return _png(overlay(found, opacity=asked.opacity, outline=asked.outline))
            case FileName.PANOPTIC:
                return _png(to_panoptic(found)[0])
            case FileName.SEGMENTS:
                return json.dumps(to_panoptic(found)[1]).encode()
            case FileName.COCO:
                return json.dumps(to_coco(found)).encode()
            case FileName.PAGE:
                return to_html(found).encode()

    def phrases(self, asked: answers.CaptionRequest) -> bytes:
        self.limits.check_caption(asked.caption)
        self.limits.check_phrases(len(asked.spans or []))
        caption, spans = asked.caption, _spans(asked)
        if spans is None:
            caption, spans = parse_brackets(caption)
        found = [answers.found_phrase(phrase) for phrase in find_phrases(caption, spans=spans)]
        return answers.Phrases(caption=caption, phrases=found).model_dump_json().encode()

    def _ground(
        self, kept: CachedImage, asked: answers.GroundRequest | answers.FileRequest, rounds: bool = False
    ) -> Grounding:
        self.limits.check_caption(asked.caption)
        caption = parse_caption(asked.caption, spans=_spans(asked), all_phrases=asked.all_phrases)
        self.limits.check_phrases(len(caption.phrases))
        found = kept.encoded.ground_phrases(caption, threshold=asked.threshold, keep_rounds=rounds)
        self.metrics.grounded.inc()
        return found


def _spans(asked: answers.CaptionRequest) -> list[tuple[int, int]] | None:
    if asked.spans == []:
        raise InputError("no phrase is marked; mark some, or leave the spans out")
    return None if asked.spans is None else [(start, end) for start, end in asked.spans]


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
