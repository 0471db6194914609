"""The word pieces of a caption, and the windows in which a long one is encoded."""

from collections.abc import Sequence
from dataclasses import dataclass

from ppmn.errors import InputError
from ppmn.types import Span


@dataclass(frozen=True)
class Tokens:
    """The word pieces of a caption, and which of them belong to which phrase."""

    ids: tuple[int, ...]  # without [CLS] and [SEP]
    pieces: tuple[tuple[int, ...], ...]  # of each phrase, positions in `ids`


def align_pieces(
    caption: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """The word pieces of each span, by the character offsets of the pieces."""
    pieces = []
    for start, end in spans:
        inside = tuple(i for i, (s, e) in enumerate(offsets) if s < end and e > start)
        if not inside:
            raise InputError(
                f"the text encoder has no word piece for {caption[start:end]!r} at {start}:{end}"
            )
        pieces.append(inside)
    return tuple(pieces)


def window_starts(length: int, window: int) -> list[int]:
    """Starts of windows that overlap by half, the last one at the end of the caption."""
    if length <= window:
        return [0]
    step = window // 2
    starts = list(range(0, length - window, step))
    return [*starts, length - window]


def central_places(length: int, starts: Sequence[int], window: int) -> tuple[list[int], list[int]]:
    """Of each piece: the number of the window in which it is most central, and its position there.

    Position 0 is [CLS].
    """
    best = [_most_central(piece, starts, min(window, length)) for piece in range(length)]
    return best, [1 + piece - starts[number] for piece, number in enumerate(best)]


def _most_central(piece: int, starts: Sequence[int], window: int) -> int:
    """The number of the window whose centre is nearest to a piece."""
    return min(range(len(starts)), key=lambda w: abs(starts[w] + window / 2 - piece))


def similar_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Groups of numbers whose lengths are at least half of the longest of their group."""
    groups: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if not groups or lengths[number] < lengths[groups[-1][0]] / 2:
            groups.append([])
        groups[-1].append(number)
    return groups
