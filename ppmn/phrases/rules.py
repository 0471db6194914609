"""The noun phrases of a caption: marked by brackets or spans, or found by part-of-speech tags and rules."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ppmn.errors import InputError
from ppmn.phrases import word_lists as words
from ppmn.phrases.tokens import Token, has_finite_verb, single_word, split_sentences
from ppmn.types import Span

# One letter per token: Q amount, M modifier, R adverb of a modifier, N noun, S plural noun, K measure noun,
# O "of", C "and" or comma, D determiner, X anything else.
_AMOUNT, _MODIFIER, _NOUN = "Q(?:CQ)?", "R?M(?:C{1,2}R?M)*", "(?:[NK]*S|[NK]+)"
_PHRASE = re.compile(f"(?:(?:[QMNS]*?KO)+(?={_AMOUNT}|{_MODIFIER}|[NKS]))?(?:{_AMOUNT}|{_MODIFIER})*{_NOUN}")
_BARE_PHRASE = re.compile(f"{_PHRASE.pattern}|(?:{_AMOUNT}|{_MODIFIER})+")
_MODIFIED = re.compile(f"(?:Q|C{{0,2}}R?M)*{_NOUN}")  # what follows a modifier
_NOUNS = ("N", "S", "K")


@dataclass(frozen=True)
class Phrase:
    """A noun phrase of a caption.

    Attributes:
        start: Its first character in the caption.
        end: The character after its last.
        text: `caption[start:end]`.
        head: Its main noun, in lower case.
        plural: Whether it names more than one object.
        abstract: Whether it names no object ("image", "background", "left side"); grounding skips these
            unless it is asked for all phrases.
    """

    start: int
    end: int
    text: str
    head: str
    plural: bool
    abstract: bool


def find_phrases(caption: str, *, spans: Sequence[Span] | None = None) -> list[Phrase]:
    """Find the noun phrases of a caption, or take those that brackets or spans mark.

    Args:
        caption: An English text of any length; [brackets] may mark its phrases.
        spans: Start and end of each phrase in characters; brackets are then ordinary text.

    Returns:
        The phrases in order. With brackets, positions refer to the caption without them, which
        `parse_brackets` returns.

    Raises:
        InputError: Brackets do not match, or a span marks no words.

    Examples:
        >>> [phrase.text for phrase in find_phrases("In this image a group of people is near the red car.")]
        ['image', 'group of people', 'red car']
        >>> [phrase.text for phrase in find_phrases("[two dogs] on [the grass]")]
        ['two dogs', 'the grass']
    """
    if spans is None:
        caption, spans = parse_brackets(caption)
    if spans is not None:
        return _marked_phrases(caption, spans)
    return [
        phrase for sentence in split_sentences(caption) for phrase in _sentence_phrases(caption, sentence)
    ]


def parse_brackets(caption: str) -> tuple[str, list[Span] | None]:
    """Remove brackets from a caption and return what they marked.

    Args:
        caption: A text in which [brackets] may mark phrases.

    Returns:
        The text without brackets, and start and end of each marked phrase in it; None if there are no
        brackets.

    Raises:
        InputError: The caption is not text, or its brackets are nested, empty or do not match.

    Examples:
        >>> parse_brackets("[two dogs] on [the grass]")
        ('two dogs on the grass', [(0, 8), (12, 21)])
    """
    if not isinstance(caption, str):
        raise InputError(f"the caption must be text, not {type(caption).__name__}")
    if "[" not in caption and "]" not in caption:
        return caption, None
    text, spans, opened = "", [], None
    for piece in re.split(r"([\[\]])", caption):
        if piece == "[":
            if opened is not None:
                raise InputError(f"a bracket is opened inside another after “{text[-30:]}”")
            opened = len(text)
        elif piece == "]":
            if opened is None:
                raise InputError(f"a bracket is closed that was not opened after “{text[-30:]}”")
            inside = text[opened:]
            if not inside.strip():
                raise InputError(f"a pair of brackets holds no words after “{text[-30:]}”")
            start = opened + len(inside) - len(inside.lstrip())
            spans.append((start, start + len(inside.strip())))
            opened = None
        else:
            text += piece
    if opened is not None:
        raise InputError(f"a bracket is opened and not closed before “{text[opened : opened + 30]}”")
    return text, spans


def _sentence_phrases(caption: str, sentence: Sequence[Token]) -> list[Phrase]:
    """The noun phrases of a sentence; where nothing else is named, modifiers too ("red on the left")."""
    letters = _letters(sentence)
    found = [_phrase(caption, sentence, *match.span()) for match in _PHRASE.finditer(letters)]
    if all(phrase.abstract for phrase in found) and not has_finite_verb(sentence):
        bare = [_phrase(caption, sentence, *match.span()) for match in _BARE_PHRASE.finditer(letters)]
        return [phrase for phrase in bare if phrase.head not in words.UNCOUNTED]
    return found


def _marked_phrases(caption: str, spans: Sequence[Span]) -> list[Phrase]:
    """Phrases exactly as they are marked; none of them is abstract, as the caller asks for them."""
    tokens = [token for sentence in split_sentences(caption) for token in sentence]
    found = []
    for start, end in spans:
        if not 0 <= start < end <= len(caption) or not caption[start:end].strip():
            raise InputError(
                f"the span ({start}, {end}) marks no words of a caption of {len(caption)} characters"
            )
        inside = [t for t in tokens if start <= t.start < end]
        match = _PHRASE.search(_letters(inside))
        last = match.end() - 1 if match else -1
        head = inside[last] if inside else Token(start, end, caption[start:end], "")
        found.append(Phrase(start, end, caption[start:end], head.word, _plural(inside, head), abstract=False))
    return found


def _letters(tokens: Sequence[Token]) -> str:
    """The letter of each token, found from the end of the sentence, as a letter depends on what follows."""
    only = single_word(tokens)
    if only:
        return "".join("N" if token is only else "X" for token in tokens)
    is_request = not has_finite_verb(tokens)
    letters = ""
    for i in reversed(range(len(tokens))):
        before = tokens[i - 1] if i else Token(0, 0, "", "")
        after = tokens[i + 1].word if letters else ""
        if is_request and tokens[i].word in ("one", "ones") and _stands_for_noun(before, after, letters):
            letters = "N" + letters
        else:
            letters = _letter(tokens[i], before, after, letters) + letters
    return letters


def _letter(token: Token, before: Token, after: str, follow: str) -> str:  # noqa: PLR0911 (one rule per line)
    word = token.word
    if not token.is_word:
        return "C" if word in ",&/" else "X"
    if word in words.DETERMINERS or token.tag == "PRP$":
        return "D"
    if word in words.AMOUNTS or token.tag == "CD":
        return "N" if before.word == "number" and token.tag == "CD" else "Q"
    if word in ("of", "and", "or"):
        return "O" if word == "of" else "C"
    if word in words.MEASURE_NOUNS and after == "of":
        return "K"
    sequences = {(before.word, word), (word, after), (before.word, word, after)}
    if word in words.PRONOUNS | words.VERBS or sequences & words.ADVERBIAL_PHRASES:
        return "X"
    if word in words.PLACE_WORDS:
        noun_follows = follow[:1] in _NOUNS or (follow[:1] == "M" and after in words.PLACE_WORDS)
        return _place(token, before, after, noun_follows)
    if word in words.ALWAYS_MODIFIERS or (word in ("far", "half") and follow[:1] == "M"):
        return "M"
    if word in words.COLOR_WORDS and follow[:1] in ("M", *_NOUNS):
        return "M"
    if word in words.PARTICIPLES or token.tag in ("VBG", "VBN", "VBD"):
        return _participle(token, before, follow)
    return _by_tag(token, before, follow)


def _stands_for_noun(before: Token, after: str, follow: str) -> bool:
    """ "the red one", "the one on the left"; not "one man" nor "one of the men"."""
    named = before.tag in ("DT", "JJ", "JJR", "JJS") or before.word in words.DIRECTIONS | words.ORDINALS
    return named and before.word != "no" and after != "of" and not _MODIFIED.match(follow)


def _place(token: Token, before: Token, after: str, noun_follows: bool) -> str:
    """ "left side": a modifier; "on the left", "at left", "bottom right": a noun."""
    if noun_follows:
        return "M"
    if not before.word and after == "of":
        return "N"  # "back of the chair"
    if before.word in words.DETERMINERS | words.PREPOSITIONS | words.DIRECTIONS | words.AMOUNTS | {"and"}:
        return "N"
    return "N" if token.tag in ("NN", "NNS", "JJ") and not before.tag.startswith("VB") else "X"


def _participle(token: Token, before: Token, follow: str) -> str:
    """ "a parked car": a modifier; "people holding cups": a verb."""
    if before.tag == "NN" and token.word in words.COMPOUND_PARTICIPLES and follow[:1] in _NOUNS:
        return "N"
    if not _MODIFIED.match(follow):
        return "N" if before.tag in ("DT", "PRP$") and token.tag in ("VBG", "NN") else "X"
    if before.tag in ("DT", "PRP$", "CD", "JJ", "POS") or before.word in words.BEFORE_PARTICIPLES:
        return "M"
    if token.word in words.NOUN_GERUNDS and follow[:1] in _NOUNS:
        return "M"
    if not before.word and follow[:1] in _NOUNS and token.word not in words.TRANSITIVE:
        return "M"  # "smiling woman"
    return "M" if token.tag == "VBN" and before.tag[:2] not in ("NN", "VB", "PR", "WD", "WP") else "X"


def _by_tag(token: Token, before: Token, follow: str) -> str:  # noqa: PLR0911 (one rule per line)
    word, tag = token.word, token.tag
    if tag in ("NNS", "NNPS"):
        return "N" if follow[:1] in _NOUNS and word in words.PLURAL_MODIFIERS else "S"
    if word in ("light", "dark") and follow[:1] == "M":
        return "M"
    if tag in ("NN", "NNP", "FW", "GW", "ADD"):
        return "X" if before.tag == "NNS" and word in words.PLURAL_VERBS else "N"
    if tag in ("JJ", "JJR", "JJS", "AFX"):
        alone = (before.word in ("a", "an") and word != "little") or word in ("light", "blind")
        return "N" if alone and not _MODIFIED.match(follow) else "M"
    if tag in ("RB", "RBR", "RBS") and follow[:1] == "M" and (word.endswith("ly") or word == "very"):
        return "R"
    if tag == "VBZ":  # "few stands", "with chairs": not a verb
        return (
            "S"
            if before.tag in ("DT", "PRP$", "CD", "IN", "VB", "VBP") or before.word in words.AMOUNTS
            else "X"
        )
    return "N" if tag in ("VB", "VBP") and before.tag in ("DT", "PRP$", "CD", "JJ") else "X"


def _phrase(caption: str, tokens: Sequence[Token], first: int, last: int) -> Phrase:
    inside, head = tokens[first:last], tokens[last - 1]
    before = [token.word for token in tokens[max(0, first - 3) : first]]
    start, end = inside[0].start, head.end
    return Phrase(
        start, end, caption[start:end], head.word, _plural(inside, head), _abstract(inside, head, before)
    )


def _plural(inside: Sequence[Token], head: Token) -> bool:
    amount = any(
        t.word in words.PLURAL_WORDS or (t.tag == "CD" and t.word not in ("one", "1")) for t in inside
    )
    word = head.word
    ending = word.endswith("s") and not word.endswith(("ss", "us", "is")) and word not in words.SINGULAR_NOUNS
    return head.tag in ("NNS", "NNPS") or word in words.PLURAL_NOUNS or amount or ending


def _abstract(inside: Sequence[Token], head: Token, before: Sequence[str]) -> bool:
    """Whether a phrase names the picture or a place in it: "the top", but not "a white top"."""
    if head.word in words.PICTURE_NOUNS:
        this = before[-1:] not in (["a"], ["an"], ["some"]) or before[:2] in (["this", "is"], ["it", "is"])
        return this and not any(t.tag.startswith("NN") for t in inside[:-1])
    return head.word in words.ABSTRACT_NOUNS or (
        head.word in words.PLACE_WORDS and all(t.word in words.DIRECTIONS | words.AMOUNTS for t in inside)
    )
