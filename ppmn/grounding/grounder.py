"""Ground captions on photos: a photo is looked at once, captions may follow in any number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import torch
import torch.nn.functional as fn
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ppmn.errors import InputError
from ppmn.evaluation.metrics import Protocol
from ppmn.grounding.maps import Frame, Map, settled
from ppmn.grounding.result import Grounding, PhraseGrounding, Round
from ppmn.images import Photo, read_photo
from ppmn.model.folder import model_folder
from ppmn.model.network import PPMN, Maps, Pixels
from ppmn.model.text import Queries
from ppmn.phrases.rules import Phrase, find_phrases, parse_brackets

Span = tuple[int, int]
BATCH = 4  # photos that are encoded together


def load(name_or_dir: str | Path = "compact", device: str | None = None) -> "Grounder":
    """A grounder from a shipped model's name or a model folder; on the GPU where there is one."""
    folder = model_folder(name_or_dir)
    return Grounder(PPMN.from_pretrained(folder), device, name=str(folder.name))


@dataclass(frozen=True)
class Request:
    """A caption with what of it is to be grounded."""

    caption: str
    phrases: tuple[Phrase, ...]
    skipped: tuple[Phrase, ...]  # named no object

    @property
    def spans(self) -> list[Span]:
        return [(p.start, p.end) for p in self.phrases]


def read_caption(caption: str, spans: Sequence[Span] | None = None, empties: bool = False) -> Request:
    """Find or take the phrases of a caption; `empties` keeps those that name no object."""
    try:
        caption.encode()
    except (UnicodeEncodeError, AttributeError) as error:
        raise InputError(f"the caption is not text ({error})") from error
    if spans is None:
        caption, spans = parse_brackets(caption)
    if not caption.strip():
        raise InputError("the caption is empty; it must name something to look for")
    found = find_phrases(caption, spans)
    kept = tuple(p for p in found if empties or not p.empty)
    if not kept:
        only = f", only {', '.join(sorted({p.text for p in found}))}" if found else ""
        start = caption if len(caption) <= 60 else f"{caption[:57]}..."
        raise InputError(
            f"the caption {start!r} names nothing to look for{only}; mark phrases with [brackets]"
        )
    return Request(caption, kept, tuple(p for p in found if p not in kept))


class Grounder:
    """A model that is ready to look at photos."""

    def __init__(self, model: PPMN, device: str | None = None, name: str = "model") -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.model = model.to(self.device).eval()
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"the device {self.device} cannot be used ({error})") from error
        self.name = name

    @property
    def threshold(self) -> float:
        """What a response must pass to be in a mask, unless a caller says otherwise."""
        return self.model.config.threshold

    @property
    def sides(self) -> tuple[int, int]:
        """What the shorter side of a photo is brought to, and what the longer may not pass."""
        return self.model.config.image.short, self.model.config.image.long

    @overload
    def look(self, photo: Photo) -> "Look": ...

    @overload
    def look(self, photo: list) -> list["Look"]: ...

    def look(self, photo: Photo | list) -> "Look | list[Look]":
        """Encode a photo, or a list of them in batches; captions follow with `Look.ground`."""
        if not isinstance(photo, list):
            return next(self._looks([photo])).alone()[0]
        return [look for batch in self._looks(photo) for look in batch.alone()]

    @overload
    def ground(
        self,
        photo: Photo,
        caption: str,
        threshold: float | None = None,
        spans: Sequence[Span] | None = None,
        rounds: bool = False,
        empties: bool = False,
    ) -> Grounding: ...

    @overload
    def ground(
        self,
        photo: list,
        caption: list[str],
        threshold: float | None = None,
        spans: Sequence[Sequence[Span] | None] | None = None,
        rounds: bool = False,
        empties: bool = False,
    ) -> list[Grounding]: ...

    def ground(
        self,
        photo: Photo | list,
        caption: str | list[str],
        threshold: float | None = None,
        spans: Sequence | None = None,
        rounds: bool = False,
        empties: bool = False,
    ) -> Grounding | list[Grounding]:
        """Ground a caption on a photo, or a list of captions on as many photos in batches."""
        if not isinstance(photo, list):
            return self.look(photo).ground(cast(str, caption), threshold, spans, rounds, empties)
        if not isinstance(caption, list) or len(caption) != len(photo):
            raise InputError(
                f"{len(photo)} photos need a list of as many captions, "
                f"not {len(caption) if isinstance(caption, list) else 'one'}"
            )
        marked = spans if spans is not None else [None] * len(photo)
        requests = [read_caption(c, s, empties) for c, s in zip(caption, marked, strict=True)]
        cut = self._threshold(threshold)
        found: list[Grounding] = []
        for batch in self._looks(photo):
            part = requests[len(found) : len(found) + len(batch.photos)]
            found += self._ground(batch, part, cut, rounds)
        return found

    def predict(
        self, photo: Image.Image, caption: str, spans: Sequence[Span], protocol: Protocol = "full"
    ) -> Iterator[NDArray[np.float32]]:
        """Probabilities a span, of the photo's size or (`released`) of a quarter of the padded input."""
        if protocol == "full":
            frame, responses = self.responses(photo, caption, spans)
            for response in self._settled(responses):
                yield frame.response(response)
            return
        queries, maps = self._maps(next(self._looks([photo])), [(caption, spans)])
        H = fn.interpolate(maps.H[-1][None], scale_factor=2.0, mode="bilinear")[0]
        yield from queries.phrase_maps(H.sigmoid()).cpu().numpy()

    def responses(self, photo: Image.Image, caption: str, spans: Sequence[Span]) -> tuple[Frame, Map]:
        """Probabilities a span at the network's stride, (P, H, W), as they come, and how they lie."""
        batch = next(self._looks([photo]))
        queries, maps = self._maps(batch, [(caption, spans)])
        return batch.frames[0], queries.phrase_maps(maps.H[-1].sigmoid()).cpu().numpy()

    def _settled(self, responses: Map) -> Map:
        return settled(responses, self.threshold, self.model.config.edge, self.model.config.peak)

    def _threshold(self, threshold: float | None) -> float:
        cut = self.threshold if threshold is None else threshold
        if not 0 <= cut <= 1:
            raise InputError(f"threshold is {cut}; it must lie between 0 and 1")
        return cut

    def _looks(self, photos: Sequence[Photo]) -> Iterator["Looks"]:
        """Where padding counts, photos are encoded one by one: company would change them."""
        step = 1 if self.model.config.count_padding else BATCH
        encoder = self.model.image_encoder
        for first in range(0, len(photos), step):
            opened = [read_photo(photo) for photo in photos[first : first + step]]
            names = [str(p) if isinstance(p, str | Path) else None for p in photos[first : first + step]]
            prepared = [encoder.prepare(photo) for photo in opened]
            with torch.inference_mode():
                with torch.autocast("cpu", torch.bfloat16, enabled=self._in_bfloat16()):
                    pyramid = encoder(prepared)
                pixels = self.model.head.look(pyramid.float())
            frames = [self._frame(p, t) for p, t in zip(opened, prepared, strict=True)]
            yield Looks(self, opened, names, frames, pixels)

    def _in_bfloat16(self) -> bool:
        """Whether the image encoder computes in bfloat16: without instructions for it, it would be slower."""
        known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch does not tell
        native = known.get("avx512_bf16") or known.get("amx_bf16")
        return bool(self.device == "cpu" and native and self.model.config.image.precision == "bfloat16")

    def _frame(self, photo: Image.Image, prepared: Tensor) -> Frame:
        encoder, (height, width) = self.model.image_encoder, prepared.shape[1:]
        rows, columns = encoder.padded(height, width)
        stride = encoder.stride
        return Frame(
            photo.height,
            photo.width,
            (rows // stride, columns // stride),
            (height / stride, width / stride),
        )

    @torch.inference_mode()
    def _maps(self, batch: "Looks", captions: Sequence[tuple[str, Sequence[Span]]]) -> tuple[Queries, Maps]:
        text = self.model.text_encoder
        queries = text([text.tokenize(caption, spans) for caption, spans in captions])
        return queries, self.model.head.ground(batch.pixels, queries.vectors, queries.counts)

    def _ground(
        self, batch: "Looks", requests: Sequence[Request], threshold: float, rounds: bool
    ) -> list[Grounding]:
        queries, maps = self._maps(batch, [(r.caption, r.spans) for r in requests])
        steps = range(len(maps.H)) if rounds else [len(maps.H) - 1]
        responses = [queries.phrase_maps(maps.H[step].sigmoid()).cpu().numpy() for step in steps]  # (P, H, W)
        rows = np.split(np.arange(len(queries.vectors)), np.cumsum(queries.sizes)[:-1])  # of each phrase
        indices = [i.cpu().numpy() for i in maps.indices] if rounds else []
        found, first = [], 0
        for photo, name, frame, request in zip(
            batch.photos, batch.names, batch.frames, requests, strict=True
        ):
            own = slice(first, first + len(request.phrases))
            first = own.stop
            height, width = frame.grid
            cut = [r[own, :height, :width].copy() for r in responses]
            answers = tuple(
                PhraseGrounding(phrase, response, frame, threshold)
                for phrase, response in zip(request.phrases, self._settled(cut[-1]), strict=True)
            )
            points = [tuple(frame.points(i[r], maps.H[0].shape[-1]) for r in rows[own]) for i in indices]
            points += [()] * (
                len(cut) - len(points)
            )  # none lead on from the last map; with S = 0 from no map
            kept = tuple(Round(c, p) for c, p in zip(cut, points, strict=True)) if rounds else ()
            found.append(
                Grounding(photo, request.caption, answers, threshold, request.skipped, kept, name, self.name)
            )
        return found


@dataclass(frozen=True)
class Looks:
    """Photos that were encoded together."""

    grounder: Grounder = field(repr=False)
    photos: list[Image.Image]
    names: list[str | None]
    frames: list[Frame]
    pixels: Pixels = field(repr=False)

    def alone(self) -> list["Look"]:
        """Each photo with its own part of the batch."""
        looks = []
        for index, frame in enumerate(self.frames):
            height, width = frame.grid
            own = tuple(F[index : index + 1, :, :height, :width].contiguous() for F in self.pixels.rounds)
            cells = None if self.pixels.cells is None else [(height, width)]
            one = slice(index, index + 1)
            looks.append(
                Look(Looks(self.grounder, self.photos[one], self.names[one], [frame], Pixels(own, cells)))
            )
        return looks


@dataclass(frozen=True)
class Look:
    """A photo that has been looked at: any number of captions may be grounded on it."""

    encoded: Looks = field(repr=False)

    @property
    def photo(self) -> Image.Image:
        """The photo upright, in RGB."""
        return self.encoded.photos[0]

    def ground(
        self,
        caption: str,
        threshold: float | None = None,
        spans: Sequence[Span] | None = None,
        rounds: bool = False,
        empties: bool = False,
    ) -> Grounding:
        """Ground a caption: its noun phrases, or what brackets or character `spans` mark.

        `threshold` None is the model's own; `rounds` keeps the maps and pixels of every round; `empties`
        also grounds phrases that name no object ("background").
        """
        return self.ground_request(read_caption(caption, spans, empties), threshold, rounds)

    def ground_request(
        self, request: Request, threshold: float | None = None, rounds: bool = False
    ) -> Grounding:
        """Ground a caption whose phrases are known."""
        grounder = self.encoded.grounder
        (found,) = grounder._ground(self.encoded, [request], grounder._threshold(threshold), rounds)
        return found
