"""What an actor does: ground the images of a chunk and write its shard, reading ahead of the network."""

import hashlib
import json
import logging
import platform
import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from PIL import Image

from ppmn.errors import InputError
from ppmn.grounding.corpus_items import Chunk, CorpusItem
from ppmn.grounding.corpus_shards import SHARD_SCHEMA, ResultFolder, ShardInfo, phrase_rows
from ppmn.grounding.corpus_sources import read_chunk
from ppmn.grounding.grounder import Grounder, load
from ppmn.grounding.result import Grounding
from ppmn.images import read_image
from ppmn.model.locate import model_digests

_log = logging.getLogger(__name__)
_AHEAD = 4  # images that are decoded before the network asks for them
_SHOWN = 3  # failures that a chunk reports; its shard has them all
_T = TypeVar("_T")


@dataclass(frozen=True)
class CorpusSettings:
    """What decides the rows of a shard, apart from the images and captions.

    Attributes:
        model: The name or folder of the model, which every node must have.
        model_sha256: Of its weights.
        config_sha256: Of its configuration.
        caption: One caption for all images, in place of their own.
        threshold: The response above which a pixel is in a mask; None takes the model's own.
        all_phrases: Also ground phrases that name no object.
        keep_absent: Keep the masks of phrases that are probably not in the image, and of a caption that seems
            not to be English.
        batch_size: Images that are encoded together, those of one size in a batch.
    """

    model: str
    model_sha256: str
    config_sha256: str
    caption: str | None = None
    threshold: float | None = None
    all_phrases: bool = False
    keep_absent: bool = False
    batch_size: int = 1

    @classmethod
    def of(cls, model: str, **options: Any) -> "CorpusSettings":
        """The settings for a model that is on this machine."""
        return cls(model, *model_digests(model), **options)

    def load(self, device: str | None, threads: int | None) -> Grounder:
        """The model; refused where this node has another one of that name."""
        here = CorpusSettings.of(self.model)
        if (here.model_sha256, here.config_sha256) != (self.model_sha256, self.config_sha256):
            raise InputError(f"the node {platform.node()} has another model {self.model} than the run")
        return load(self.model, device=device, threads=threads)

    def digest(self) -> "hashlib._Hash":
        """The start of a chunk's key; `add_item` adds its images."""
        own = {name: value for name, value in asdict(self).items() if name != "model"}
        own["columns"] = SHARD_SCHEMA.names
        return hashlib.sha256(json.dumps(own).encode())


def add_item(digest: "hashlib._Hash", item: CorpusItem) -> None:
    """Add to a chunk's key what of an item decides its rows."""
    content = hashlib.sha256(item.content).hexdigest()
    digest.update(json.dumps([item.name, item.caption, item.spans, item.problem, content]).encode())


@dataclass(frozen=True)
class _Decoded:
    """An item with its image, or with the sentence that says why there is none."""

    place: int
    item: CorpusItem
    image: Image.Image | None = None
    problem: str = ""


class ChunkWorker:
    """Grounds the chunks that an actor is given; the model is loaded when the first one needs it."""

    def __init__(
        self, settings: CorpusSettings, location: str, device: str | None = None, threads: int | None = None
    ) -> None:
        self.settings, self.results = settings, ResultFolder(location)
        self.device, self.threads = device, threads
        self.grounder: Grounder | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Ground one chunk, unless its shard is there; its report says `fault` if it cannot be written."""
        chunk = Chunk(**row)
        try:
            earlier = self.results.shard_info(chunk.name)
            if earlier and earlier.key == self._key(chunk):
                return _report(earlier)
            return self._ground(chunk)
        except InputError as error:
            return _report(ShardInfo(""), fault=str(error))

    def _ground(self, chunk: Chunk) -> dict[str, Any]:
        self.grounder = self.grounder or self.settings.load(self.device, self.threads)
        digest = self.settings.digest()
        answers: list[tuple[int, list[dict] | dict]] = []
        for batch in size_batches(ahead(self._decode(chunk, digest)), self.settings.batch_size):
            answers += self._answer(batch)
        answers.sort(key=lambda answer: answer[0])
        errors = [found for _, found in answers if isinstance(found, dict)]
        rows = [row for _, found in answers if isinstance(found, list) for row in found]
        info = ShardInfo(digest.hexdigest(), len(answers) - len(errors), len(rows), len(errors))
        self.results.write_shard(chunk.name, rows, errors, info)
        return _report(info, computed=True, failures=[_sentence(error) for error in errors[:_SHOWN]])

    def _key(self, chunk: Chunk) -> str:
        digest = self.settings.digest()
        for item in read_chunk(chunk, caption=self.settings.caption):
            add_item(digest, item)
        return digest.hexdigest()

    def _decode(self, chunk: Chunk, digest: "hashlib._Hash") -> Iterator[_Decoded]:
        for place, item in enumerate(read_chunk(chunk, caption=self.settings.caption)):
            add_item(digest, item)
            try:
                if item.problem is not None:
                    raise InputError(item.problem)
                yield _Decoded(place, item, read_image(item.content))
            except InputError as error:
                yield _Decoded(place, item, problem=str(error))

    def _answer(self, batch: list[_Decoded]) -> Iterator[tuple[int, list[dict] | dict]]:
        """The rows of each image, or its error; where one caption fails, its batch is grounded one by one."""
        if len(batch) > 1:
            try:
                groundings = zip(batch, self._ground_images(batch), strict=True)
                rows = [(decoded.place, self._rows(decoded.item, found)) for decoded, found in groundings]
                yield from rows
                return
            except Exception as error:  # said below, for the image that it is about
                _log.debug("a batch of %d images failed (%s)", len(batch), error)
        for decoded in batch:
            try:
                if decoded.image is None:
                    raise InputError(decoded.problem)
                (grounding,) = self._ground_images([decoded])
                yield decoded.place, self._rows(decoded.item, grounding)
            except InputError as error:
                yield decoded.place, _failure(decoded.item, str(error))
            except Exception as error:  # one image must not stop a million
                reason = f"it could not be grounded ({type(error).__name__}: {error})"
                yield decoded.place, _failure(decoded.item, " ".join(reason.split()))

    def _ground_images(self, batch: list[_Decoded]) -> list[Grounding]:
        assert self.grounder is not None  # loaded before the first batch
        return self.grounder.ground_batch(
            [decoded.image for decoded in batch if decoded.image is not None],
            [decoded.item.caption for decoded in batch],
            spans=[decoded.item.spans for decoded in batch],
            threshold=self.settings.threshold,
            all_phrases=self.settings.all_phrases,
            keep_absent=self.settings.keep_absent,
        )

    def _rows(self, item: CorpusItem, grounding: Grounding) -> list[dict]:
        digest = hashlib.sha256(item.content).hexdigest()
        model = self.settings.model_sha256
        return phrase_rows(grounding, image=item.name, image_sha256=digest, model_sha256=model)


def size_batches(items: Iterable[_Decoded], batch_size: int) -> Iterator[list[_Decoded]]:
    """Batches of images of one size; what is in a batch depends on the chunk alone."""
    waiting: dict[tuple[int, int], list[_Decoded]] = {}
    count = 0
    for item in items:
        if item.image is None or batch_size == 1:
            yield [item]
            continue
        same = waiting.setdefault(item.image.size, [])
        same.append(item)
        count += 1
        if len(same) == batch_size:
            count -= len(same)
            yield waiting.pop(item.image.size)
        elif count >= 4 * batch_size:  # images of many sizes: memory stays bounded
            largest = max(waiting, key=lambda size: len(waiting[size]))
            count -= len(waiting[largest])
            yield waiting.pop(largest)
    yield from waiting.values()


def ahead(items: Iterator[_T], count: int = _AHEAD) -> Iterator[_T]:
    """The items in their order, made in a thread of their own, up to `count` before they are asked for."""
    made: queue.Queue[tuple[_T | None, BaseException | None]] = queue.Queue(count)
    stopped = threading.Event()

    def put(value: tuple[_T | None, BaseException | None]) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                return made.put(value, timeout=0.1)

    def run() -> None:
        try:
            for item in items:
                put((item, None))
                if stopped.is_set():
                    return
            put((None, None))
        except BaseException as error:
            put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        while True:
            item, error = made.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stopped.set()


def _report(
    info: ShardInfo, *, computed: bool = False, failures: Iterable[str] = (), fault: str = ""
) -> dict[str, Any]:
    """What an actor says of a chunk."""
    counts = {"images": info.images, "phrases": info.phrases, "errors": info.errors}
    return {**counts, "computed": computed, "failures": "\n".join(failures), "fault": fault}


def _failure(item: CorpusItem, error: str) -> dict[str, str]:
    return {"image": item.name, "caption": item.caption, "error": error}


def _sentence(error: dict[str, str]) -> str:
    named = error["error"].startswith(error["image"])
    text = error["error"] if named else f"{error['image']}: {error['error']}"
    return " ".join(text.split())
