"""Photos that have been looked at, kept while there is room."""

import hashlib
import io
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property

from ppmn.errors import InputError
from ppmn.grounding.grounder import EncodedImage
from ppmn.grounding.maps import MapGeometry
from ppmn.grounding.render import shrink

SIDE = 1600  # longer side of the photo that the page shows


@dataclass(frozen=True)
class CachedImage:
    """A look under the name that a client asks for it by."""

    id: str
    encoded: EncodedImage = field(repr=False)

    @property
    def frame(self) -> MapGeometry:
        return self.encoded.geometry

    @cached_property
    def preview(self) -> bytes:
        """The photo upright and of a size for the screen, as every browser shows it."""
        buffer = io.BytesIO()
        shrink(self.encoded.image, SIDE).save(buffer, "JPEG", quality=90)
        return buffer.getvalue()

    @property
    def size(self) -> int:
        """Bytes it takes."""
        width, height = self.encoded.image.size
        rounds = self.encoded.pixels.rounds
        return 3 * width * height + sum(F.nbytes for F in rounds) + len(self.preview)


def image_id_of(content: bytes) -> str:
    """The same file gets the same id, so that it is not looked at twice; none can be guessed."""
    return hashlib.sha256(content).hexdigest()[:32]


class ImageCache:
    """At most `most` looks and `room` bytes; what was not asked for longest goes first."""

    def __init__(self, most: int, room: int) -> None:
        self.most, self.room = most, room
        self.bytes = 0
        self._kept: OrderedDict[str, tuple[CachedImage, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, id: str) -> CachedImage | None:
        with self._lock:
            if id not in self._kept:
                return None
            self._kept.move_to_end(id)
            return self._kept[id][0]

    def put(self, kept: CachedImage) -> None:
        size = kept.size
        if size > self.room:
            raise InputError(
                f"the photo would take {size / 1e6:,.0f} MB to keep; the most is {self.room / 1e6:,.0f}"
            )
        with self._lock:
            if kept.id in self._kept:
                return
            self._kept[kept.id] = kept, size
            self.bytes += size
            while len(self._kept) > self.most or self.bytes > self.room:
                _, (_, freed) = self._kept.popitem(last=False)
                self.bytes -= freed
