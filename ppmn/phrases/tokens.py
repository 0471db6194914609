"""A caption as sentences of tagged tokens."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ppmn.phrases import word_lists as words
from ppmn.phrases.corrections import correct_tags
from ppmn.phrases.tagger import load_tagger
from ppmn.types import Span

_TOKEN = re.compile(
    r"\w+?(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)+"
    r"|[\w\u0300-\u036f]+(?:[-‐‑][\w\u0300-\u036f]+)*|[^\w\s]",
    re.IGNORECASE,
)
# Up to a full stop or an empty line.
_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?=\w)|\n(?![ \t\r]*\n))+[.!?\s]*|[.!?\s]+")
_LINE = re.compile(r"[^\n]*\S[^\n]*")
_LIST_MARK = re.compile(r"^[ \t]*(?:[-*•–]|\d{1,3}[.)])[ \t]+", re.MULTILINE)
_MAX_TOKENS = 200  # of a sentence, so that a caption without full stops takes little memory
_MAX_LIST_LINE = 60  # characters; longer lines are text that was wrapped
_FINITE_VERBS = ("VBZ", "VBP", "VBD", "MD")
_UNFINISHED = ("DT", "IN", "TO", "CC", "JJ", "JJR", "JJS", "PRP$", "POS", "CD", ",")


@dataclass(frozen=True)
class Token:
    """A word or a punctuation mark with its part of speech."""

    start: int
    end: int
    word: str  # in lower case
    tag: str

    @property
    def is_word(self) -> bool:
        return any(c.isalnum() for c in self.word)


def split_sentences(caption: str) -> Iterator[list[Token]]:
    """Tagged tokens, one sentence at a time.

    An empty line and the mark of a list item ("- ", "1. ") end a sentence. A line break does only in a list:
    where each line is complete by itself.
    """
    for sentence in (found for item in _items(caption) for found in _SENTENCE.finditer(caption, *item)):
        lines = [line.span() for line in _LINE.finditer(caption, *sentence.span())]
        if len(lines) > 1 and _is_list(caption, lines):
            for line in lines:
                yield from _tag(caption, line)
        else:
            yield from _tag(caption, sentence.span())


def single_word(tokens: Sequence[Token]) -> Token | None:
    """The only word of a sentence, articles aside; None if there are more, or if it names nothing ("it")."""
    found = [token for token in tokens if token.is_word and token.word not in words.DETERMINERS]
    return found[0] if len(found) == 1 and found[0].word not in words.FUNCTION_WORDS else None


def has_finite_verb(tokens: Sequence[Token]) -> bool:
    """Whether a verb makes the tokens a sentence: "stands" and "is" do; "standing" and "find ..." do not."""
    if tokens and tokens[0].word in words.REQUESTS:
        tokens = tokens[1:]
    return any(token.tag in _FINITE_VERBS or token.word in words.VERBS for token in tokens)


def _items(caption: str) -> Iterator[Span]:
    """The parts between the marks of list items."""
    start = 0
    for mark in _LIST_MARK.finditer(caption):
        yield start, mark.start()
        start = mark.end()
    yield start, len(caption)


def _tag(caption: str, part: Span) -> Iterator[list[Token]]:
    tokens = [(m.start(), m.end(), m[0]) for m in _TOKEN.finditer(caption, *part)]
    for first in range(0, len(tokens), _MAX_TOKENS):
        sentence = tokens[first : first + _MAX_TOKENS]
        written = [word for _, _, word in sentence]
        tags = correct_tags(written, load_tagger().tag(written))
        yield [
            Token(start, end, word.lower(), tag)
            for (start, end, word), tag in zip(sentence, tags, strict=True)
        ]


def _is_list(caption: str, lines: Sequence[Span]) -> bool:
    """Whether lines are complete by themselves ("a dog", "a cat") rather than pieces of one text."""
    texts = [caption[start:end] for start, end in lines]
    if max(map(len, texts)) > _MAX_LIST_LINE:
        return False
    tagged = [next(_tag(caption, line)) for line in lines]
    if not all(map(_is_complete, tagged)):
        return False
    capitals = all(text.lstrip()[0].isupper() for text in texts) and not caption.isupper()
    return capitals or not any(map(has_finite_verb, tagged))


def _is_complete(line: Sequence[Token]) -> bool:
    if single_word(line):
        return True
    last = line[-1]
    if last.word in words.FUNCTION_WORDS:
        return False
    return last.tag not in _UNFINISHED and last.word not in words.COMPOUND_STARTS
