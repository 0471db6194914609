"""Part-of-speech tags (Penn Treebank) by an averaged perceptron; its weights are in tagger.npz."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from zlib import crc32

import numpy as np

TAGGER_FILE = Path(__file__).with_name("tagger.npz")
_EXCLUDED = -1_000_000  # below any sum of weights


def static_features(words: Sequence[str], i: int) -> list[str]:
    """Features of word i that depend on no tag: its shape, prefixes, suffixes and neighbours."""
    word, shape = normalize(words[i]), word_shape(words[i])
    before, before2 = (normalize(words[i - j]) if i >= j else "<s>" for j in (1, 2))
    after, after2 = (normalize(words[i + j]) if i + j < len(words) else "</s>" for j in (1, 2))
    return [
        "bias", f"w {word}", f"s1 {word[-1:]}", f"s2 {word[-2:]}", f"s3 {word[-3:]}", f"s4 {word[-4:]}",
        f"p1 {word[:1]}", f"p3 {word[:3]}", f"f {shape}", f"f {shape} {i == 0} {word[-2:]}",
        f"-1 {before}", f"-2 {before2}", f"+1 {after}", f"+2 {after2}",
        f"-1s {before[-3:]}", f"+1s {after[-3:]}", f"+2s {after2[-3:]}",
        f"-1w {before} {word}", f"+1w {word} {after}", f"-1+1 {before} {after}",
        f"s3-1 {before} {word[-3:]}", f"s3+1 {word[-3:]} {after}", f"-2-1 {before2} {before}",
        f"+1+2 {after} {after2}",
    ]  # fmt: skip


def tag_features(words: Sequence[str], i: int, tag2: str, tag1: str) -> list[str]:
    """Features of word i that depend on the two tags before it."""
    word = normalize(words[i])
    after = normalize(words[i + 1]) if i + 1 < len(words) else "</s>"
    return [
        f"t {tag1}", f"tt {tag2} {tag1}", f"tw {tag1} {word}", f"ts {tag1} {word[-3:]}",
        f"t+1 {tag1} {after}", f"t+1s {tag1} {after[-2:]}", f"ttw {tag2} {tag1} {word[-2:]}",
    ]  # fmt: skip


@lru_cache(4096)
def normalize(word: str) -> str:
    """A word as the features see it: lower case, digits as 0, of "t-shirt" the last part."""
    word = re.sub(r"\d", "0", word.lower().replace("’", "'"))
    return word.rstrip("-").rpartition("-")[2] or word


@lru_cache(4096)
def word_shape(word: str) -> str:
    """Whether a word has capitals, digits or only punctuation."""
    kind = "A" if word.isupper() and len(word) > 1 else "Aa" if word[:1].isupper() else "a"
    return kind + "0" * any(c.isdigit() for c in word) + "." * (not any(c.isalnum() for c in word))


def feature_hash(feature: str) -> int:
    """The number that stands for a feature in tagger.npz."""
    return crc32(feature.encode("utf-8", "replace"))


class Tagger:
    """A greedy tagger, from left to right.

    `weights` (features + 1, tags) has one row per known feature and a last row of zeros for all others.
    `allowed` (words + 1, tags) says which tags each common word may have; its last row is for all others.
    """

    def __init__(
        self,
        tags: Sequence[str],
        hashes: np.ndarray,
        weights: np.ndarray,
        words: np.ndarray,
        allowed: np.ndarray,
    ) -> None:
        self.tags, self.weights, self.allowed = list(tags), weights, allowed
        self.row = dict(zip(hashes.tolist(), range(len(hashes)), strict=True))
        self.word = dict(zip(words.tolist(), range(len(words)), strict=True))

    def rows(self, features: Sequence[str]) -> list[int]:
        """The rows of `weights` of some features."""
        find, unknown = self.row.get, len(self.row)
        return [find(crc32(feature.encode("utf-8", "replace")), unknown) for feature in features]

    def tag(self, words: Sequence[str]) -> list[str]:
        """One tag per word of a sentence."""
        rows = [self.rows(static_features(words, i)) for i in range(len(words))]
        scores = self.weights[np.array(rows)].sum(1, dtype=np.int32)  # (words, tags)
        known = [self.word.get(feature_hash(normalize(word)), len(self.word)) for word in words]
        scores[~self.allowed[known]] = _EXCLUDED
        found: list[str] = []
        tag2, tag1 = "<s>", "<s>"
        for i in range(len(words)):
            by_tags = self.weights[self.rows(tag_features(words, i, tag2, tag1))].sum(0, dtype=np.int32)
            tag2, tag1 = tag1, self.tags[int((scores[i] + by_tags).argmax())]
            found.append(tag1)
        return found


@lru_cache(1)
def load_tagger(file: Path = TAGGER_FILE) -> Tagger:
    """A tagger from its file, by default the one that ships; read once."""
    with np.load(file, allow_pickle=False) as arrays:
        tags, hashes, count = arrays["tags"].tolist(), arrays["hashes"], arrays["count"]
        weights = np.zeros((len(hashes) + 1, len(tags)), np.int8)
        weights[np.repeat(np.arange(len(hashes)), count), arrays["tag"]] = arrays["weight"]
        allowed = np.unpackbits(arrays["seen"], axis=1, count=len(tags)).astype(bool)
        return Tagger(tags, hashes, weights, arrays["words"], allowed)
