"""Corrections of tags: the tagger learned from whole sentences and misreads some captions."""

from collections.abc import Sequence

from ppmn.phrases import word_lists as words

_VERBS = ("VB", "VBZ", "VBP", "VBD", "MD")
_CLAUSE_ENDS = words.CLAUSE_WORDS | {",", ";", ":", ".", "!", "?", "(", ")"}


def correct_tags(written: Sequence[str], tags: Sequence[str]) -> list[str]:
    """Tags of a sentence with verbs and nouns as captions use them.

    Args:
        written: The words of a sentence.
        tags: Their tags, by the tagger.

    Returns:
        The tags, corrected.
    """
    lower = [word.lower() for word in written]
    corrected = list(tags)
    for i in range(len(lower)):
        if lower[i] not in words.FUNCTION_WORDS and lower[i] not in words.DETERMINERS:
            corrected[i] = _correct_tag(lower, corrected, i)
    return corrected


def _correct_tag(lower: Sequence[str], tags: Sequence[str], i: int) -> str:  # noqa: PLR0911 (one rule per line)
    """The tag of word i; those before it are corrected already."""
    word, tag = lower[i], tags[i]
    after = tags[i + 1] if i + 1 < len(tags) else "."
    if word in words.ALWAYS_NOUNS:
        return "NN"
    if tag == "JJ" and word in words.ADJECTIVES_OR_NOUNS and _is_listed(lower, tags, i):
        return "NN"
    if word.endswith("est") and len(word) > 5 and after in ("NN", "CD"):
        return "JJS"  # "tallest one"
    if tag in ("VB", "VBP", "VBZ", "UH") and _opens_noun_phrase(lower, tags, i):
        return "NNS" if tag == "VBZ" else "NN"
    if tag == "NNS" and word in words.ACTIONS_SINGULAR and _has_subject(lower, tags, i):
        return "VBZ"
    if tag in ("NN", "NNP") and word in words.ACTIONS and _has_two_subjects(lower, tags, i):
        return "VBP"
    if tag == "NN" and word.endswith("ing") and i == 0 and after == "RB":
        return "VBG"  # "running quickly"
    return tag


def _opens_noun_phrase(lower: Sequence[str], tags: Sequence[str], i: int) -> bool:
    """Whether a word tagged as a verb is a noun: "stop sign", "bride cutting a cake", "bag, watch, shoes"."""
    if tuple(lower[i : i + 2]) in words.VERB_COMPOUNDS:
        return True
    if lower[i] in words.REQUESTS or _has_verb(tags[:i]):
        return False
    after = tags[i + 1] if i + 1 < len(tags) else "."
    if i == 0:
        return after in ("IN", "VBG", "VBN", "VBZ", "NN", "NNS", "CC", ",", ".", ":")
    if lower[i - 1] not in words.COORDINATIONS or after not in ("CC", ",", ".", ":"):
        return False
    acts = lower[i] in words.ACTIONS or lower[i] in words.ACTIONS_SINGULAR
    return not acts or words.BEINGS.isdisjoint(lower[:i])


def _is_listed(lower: Sequence[str], tags: Sequence[str], i: int) -> bool:
    """Whether word i is an item of a list: "apple, orange, banana"."""
    before, after = lower[i - 1] if i else ",", lower[i + 1] if i + 1 < len(lower) else ","
    return before in words.COORDINATIONS and after in words.COORDINATIONS and not _has_verb(tags[:i])


def _has_verb(tags: Sequence[str]) -> bool:
    return any(tag in _VERBS for tag in tags)


def _clause_start(lower: Sequence[str], i: int) -> int:
    return next((j + 1 for j in reversed(range(i)) if lower[j] in _CLAUSE_ENDS), 0)


def _has_subject(lower: Sequence[str], tags: Sequence[str], i: int) -> bool:
    """Whether a living being in the singular does what word i says: "a dog barks", "a man in a hat waves"."""
    start = _clause_start(lower, i)
    end = next((j for j in range(i + 1, len(lower)) if lower[j] in _CLAUSE_ENDS), len(lower))
    if i == start or tags[i - 1] != "NN" or _has_verb(tags[start:i]) or _has_verb(tags[i + 1 : end]):
        return False
    return any(lower[j] in words.BEINGS and tags[j] in ("NN", "NNP") for j in range(start, i))


def _has_two_subjects(lower: Sequence[str], tags: Sequence[str], i: int) -> bool:
    """ "a dog and a cat lie": word i follows two living beings."""
    beings = [j for j in range(max(0, i - 6), i) if lower[j] in words.BEINGS]
    joined = len(beings) > 1 and "and" in lower[beings[-2] : beings[-1]] and beings[-1] == i - 1
    return joined and not _has_verb(tags[:i])
