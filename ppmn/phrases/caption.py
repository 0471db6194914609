"""A caption with the phrases that are to be grounded."""

from collections.abc import Sequence
from dataclasses import dataclass

from ppmn.errors import InputError
from ppmn.phrases.language import language_warning, not_english
from ppmn.phrases.rules import Phrase, find_phrases, parse_brackets
from ppmn.types import Span


@dataclass(frozen=True)
class Caption:
    """A caption with its phrases.

    Attributes:
        text: The caption without brackets.
        phrases: The phrases to ground.
        skipped: Phrases that are not grounded, because they name no object.
        warning: One sentence if the caption seems not to be English, else "".
    """

    text: str
    phrases: tuple[Phrase, ...]
    skipped: tuple[Phrase, ...] = ()
    warning: str = ""

    @property
    def spans(self) -> list[Span]:
        return [(p.start, p.end) for p in self.phrases]


def parse_caption(text: str, *, spans: Sequence[Span] | None = None, all_phrases: bool = False) -> Caption:
    """Find the phrases of a caption, or take those that spans or brackets mark.

    Args:
        text: The caption; [brackets] mark phrases where `spans` is None.
        spans: Start and end of each phrase, in characters.
        all_phrases: Keep phrases that name no object ("background") too.

    Returns:
        The caption with at least one phrase.

    Raises:
        InputError: The caption is empty, is not text, or has no phrase to ground.
    """
    try:
        text.encode()
    except (UnicodeEncodeError, AttributeError) as error:
        raise InputError(f"the caption is not text ({error})") from error
    if spans is None:
        text, spans = parse_brackets(text)
    if not text.strip():
        raise InputError("the caption is empty; it must name something to look for")
    found = find_phrases(text, spans=spans)
    phrases = tuple(p for p in found if all_phrases or not p.abstract)
    if not phrases:
        only = f", only {', '.join(sorted({p.text for p in found}))}" if found else ""
        start = text if len(text) <= 60 else f"{text[:57]}..."
        advice = not_english(text) or "mark phrases with [brackets]"
        raise InputError(f"the caption {start!r} names nothing to look for{only}; {advice}")
    return Caption(text, phrases, tuple(p for p in found if p not in phrases), language_warning(text))
