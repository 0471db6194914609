"""Limits on what clients may send and on what the server keeps."""

from dataclasses import dataclass, field

from ppmn.errors import InputError


def _limit(default: int, meaning: str) -> int:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Limits:
    """Every field is an option of `ppmn serve`: `upload_mb` is `--max-upload-mb`."""

    upload_mb: int = _limit(40, "megabytes of an image file")
    megapixels: int = _limit(120, "millions of pixels of an image")
    caption_length: int = _limit(20_000, "characters of a caption")
    phrases: int = _limit(1000, "phrases of a caption")
    seconds: int = _limit(60, "seconds per request, waiting included")
    queue: int = _limit(32, "waiting requests; further requests get 503")
    images: int = _limit(32, "encoded images in the cache")
    cache_mb: int = _limit(1000, "megabytes of encoded images in the cache")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise InputError(f"--max-{name.replace('_', '-')} is {value}; it must be at least 1")

    def check_caption(self, *, length: int = 0, phrases: int = 0) -> None:
        """Raise InputError if a caption has too many characters or phrases."""
        if length > self.caption_length:
            raise InputError(f"the caption has {length:,} characters; the limit is {self.caption_length:,}")
        if phrases > self.phrases:
            raise InputError(f"the caption has {phrases:,} phrases; the limit is {self.phrases:,}")
