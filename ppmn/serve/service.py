"""What the server does for a request, in the worker's thread."""

import io
import json
from dataclasses import dataclass
from enum import StrEnum

from PIL import Image

from ppmn.errors import InputError
from ppmn.grounding.grounder import Grounder, read_caption
from ppmn.grounding.render import overlay
from ppmn.grounding.result import Grounding
from ppmn.images import read_photo
from ppmn.phrases.rules import find_phrases, parse_brackets
from ppmn.serve import schemas as answers
from ppmn.serve.counters import Metrics
from ppmn.serve.image_cache import KeptLook, LookCache, look_id
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


class LookGoneError(Exception):
    """The photo is not in the cache."""


@dataclass(frozen=True)
class Service:
    grounder: Grounder
    limits: Limits
    looks: LookCache
    metrics: Metrics

    def look(self, content: bytes) -> bytes:
        """Look at a photo, unless the same file is kept."""
        id = look_id(content)
        kept = self.looks.get(id)
        if kept is None:
            photo = read_photo(content, self.limits.pixels * 1_000_000)
            kept = KeptLook(id, self.grounder.look(photo))
            self.metrics.encoded.inc()
            self.looks.put(kept)
        return answers.seen_photo(kept).model_dump_json().encode()

    def kept(self, id: str) -> KeptLook:
        kept = self.looks.get(id)
        if kept is None:
            raise LookGoneError("this photo is not kept (any more); send it again")
        return kept

    def ground(self, kept: KeptLook, asked: answers.GroundRequest) -> bytes:
        found = self._ground(kept, asked, asked.rounds)
        return answers.grounded(kept, found, asked.masks).model_dump_json().encode()

    def file(self, kept: KeptLook, name: FileName, asked: answers.FileRequest) -> bytes:
        found = self._ground(kept, asked)
        match name:
            case FileName.OVERLAY:
                return _png(overlay(found, opacity=asked.opacity, outline=asked.outline))
            case FileName.PANOPTIC:
                return _png(found.to_panoptic()[0])
            case FileName.SEGMENTS:
                return json.dumps(found.to_panoptic()[1]).encode()
            case FileName.COCO:
                return json.dumps(found.to_coco()).encode()
            case FileName.PAGE:
                return found.page().encode()

    def phrases(self, asked: answers.CaptionRequest) -> bytes:
        self.limits.check_caption(asked.caption)
        self.limits.check_phrases(len(asked.spans or []))
        caption, spans = asked.caption, _spans(asked)
        if spans is None:
            caption, spans = parse_brackets(caption)
        found = [answers.found_phrase(phrase) for phrase in find_phrases(caption, spans)]
        return answers.Phrases(caption=caption, phrases=found).model_dump_json().encode()

    def _ground(
        self, kept: KeptLook, asked: answers.GroundRequest | answers.FileRequest, rounds: bool = False
    ) -> Grounding:
        self.limits.check_caption(asked.caption)
        request = read_caption(asked.caption, _spans(asked), asked.empties)
        self.limits.check_phrases(len(request.phrases))
        found = kept.look.ground_request(request, asked.threshold, rounds)
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
