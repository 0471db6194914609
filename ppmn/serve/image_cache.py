"""A cache of encoded images with a limit on their number and one on their bytes."""

import hashlib
import threading
from dataclasses import dataclass, field
from functools import cached_property

from cachetools import LRUCache

from ppmn.errors import InputError
from ppmn.grounding.encoded_image import EncodedImage
from ppmn.grounding.render import shrink
from ppmn.images import encode_image_file

_PREVIEW_SIDE = 1600  # longer side in pixels


@dataclass(frozen=True)
class CachedImage:
    """An encoded image and the id that clients know it by."""

    id: str
    encoded: EncodedImage = field(repr=False)

    @cached_property
    def preview(self) -> bytes:
        """The upright image at screen size, as JPEG."""
        return encode_image_file(shrink(self.encoded.image, _PREVIEW_SIDE), "JPEG", quality=90)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        width, height = self.encoded.image.size
        return 3 * width * height + self.encoded.nbytes + len(self.preview)


def image_id(content: bytes) -> str:
    """The id of an image file: equal for equal files, and impossible to guess without the file."""
    return hashlib.sha256(content).hexdigest()[:32]


class ImageCache:
    """At most `max_images` images in at most `max_bytes`; the least recently used image goes first."""

    def __init__(self, max_images: int, max_bytes: int) -> None:
        self.max_images = max_images
        self._images: LRUCache[str, CachedImage] = LRUCache(max_bytes, getsizeof=lambda image: image.size)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._images)

    @property
    def bytes(self) -> int:
        """Bytes of all cached images."""
        return int(self._images.currsize)

    def get(self, id: str) -> CachedImage | None:
        """The image with this id; None if it is not cached."""
        with self._lock:
            return self._images.get(id)

    def put(self, image: CachedImage) -> None:
        """Add an image, or raise InputError if it alone is above the limit."""
        limit = self._images.maxsize
        if image.size > limit:
            raise InputError(
                f"the image takes {image.size / 1e6:,.0f} MB in the cache; the limit is {limit / 1e6:,.0f} MB"
            )
        with self._lock:
            self._images[image.id] = image
            while len(self._images) > self.max_images:
                self._images.popitem()
