"""What a visitor may ask of the server."""

from dataclasses import dataclass, field

from ppmn.errors import InputError


def _limit(default: int, meaning: str) -> int:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Limits:
    """Every field is an option of `ppmn serve`: `--max-upload 40`."""

    upload: int = _limit(40, "megabytes of a photo's file")
    pixels: int = _limit(120, "millions of pixels of a photo")
    caption: int = _limit(20_000, "characters of a caption")
    phrases: int = _limit(1000, "phrases of a caption")
    seconds: int = _limit(60, "seconds that a request may take, waiting included")
    queue: int = _limit(32, "requests that may wait; more are told to come again")
    looks: int = _limit(32, "photos that are kept")
    cache: int = _limit(1000, "megabytes of photos that are kept")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise InputError(f"--max-{name} is {value}; it must be at least 1")

    def check_caption(self, caption: str) -> None:
        if len(caption) > self.caption:
            raise InputError(f"the caption has {len(caption):,} characters; the most is {self.caption:,}")

    def check_phrases(self, count: int) -> None:
        if count > self.phrases:
            raise InputError(f"the caption has {count:,} phrases; the most is {self.phrases:,}")
