"""Part-of-speech tags (Penn Treebank) by an averaged perceptron; its weights are data beside this file."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from zlib import crc32

import numpy as np

WEIGHTS = Path(__file__).with_name("tagger.npz")
LONGEST = 200  # tokens tagged at once: a caption without a full stop costs no more memory than one with
NEVER = 1_000_000  # more than any sum of weights


def static_features(words: Sequence[str], i: int) -> list[str]:
    """What is known of word i before any tag is: its form, its ends, its neighbours."""
    word, shape = normal(words[i]), form(words[i])
    before, before2 = (normal(words[i - j]) if i >= j else "<s>" for j in (1, 2))
    after, after2 = (normal(words[i + j]) if i + j < len(words) else "</s>" for j in (1, 2))
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
    """What the two tags before word i add."""
    word = normal(words[i])
    after = normal(words[i + 1]) if i + 1 < len(words) else "</s>"
    return [
        f"t {tag1}", f"tt {tag2} {tag1}", f"tw {tag1} {word}", f"ts {tag1} {word[-3:]}",
        f"t+1 {tag1} {after}", f"t+1s {tag1} {after[-2:]}", f"ttw {tag2} {tag1} {word[-2:]}",
    ]  # fmt: skip


@lru_cache(4096)
def normal(word: str) -> str:
    """The form features see: lower case, digits alike, the last part of "t-shirt"."""
    word = re.sub(r"\d", "0", word.lower().replace("’", "'"))
    return word.rstrip("-").rpartition("-")[2] or word


@lru_cache(4096)
def form(word: str) -> str:
    """Capitals and digits; a name in capitals tells little in the middle of a caption, but something."""
    kind = "A" if word.isupper() and len(word) > 1 else "Aa" if word[:1].isupper() else "a"
    return kind + "0" * any(c.isdigit() for c in word) + "." * (not any(c.isalnum() for c in word))


def key(feature: str) -> int:
    return crc32(feature.encode("utf-8", "replace"))


class Tagger:
    """Greedy, left to right; `weights` has a row a known feature and a last row of zeros for the others.

    `seen` are the tags each common word may have, its last row those of all other words: no articles there.
    """

    def __init__(
        self,
        tags: Sequence[str],
        hashes: np.ndarray,
        weights: np.ndarray,
        words: np.ndarray,
        seen: np.ndarray,
    ):
        self.tags, self.weights, self.seen = (
            list(tags),
            weights,
            seen,
        )  # (features + 1, tags), (words + 1, tags)
        self.row = dict(zip(hashes.tolist(), range(len(hashes)), strict=True))
        self.word = dict(zip(words.tolist(), range(len(words)), strict=True))

    def rows(self, features: Sequence[str]) -> list[int]:
        unknown = len(self.row)
        return [self.row.get(key(feature), unknown) for feature in features]

    def tag(self, words: Sequence[str]) -> list[str]:
        """A tag a word of one sentence."""
        found: list[str] = []
        for start in range(0, len(words), LONGEST):
            found += self._tag(words[start : start + LONGEST])
        return found

    def _tag(self, words: Sequence[str]) -> list[str]:
        rows = [self.rows(static_features(words, i)) for i in range(len(words))]
        scores = self.weights[np.array(rows)].sum(1, dtype=np.int32)  # (words, tags)
        scores[~self.seen[[self.word.get(key(normal(word)), len(self.word)) for word in words]]] = -NEVER
        found: list[str] = []
        tag2, tag1 = "<s>", "<s>"
        for i in range(len(words)):
            score = scores[i] + self.weights[self.rows(tag_features(words, i, tag2, tag1))].sum(
                0, dtype=np.int32
            )
            tag2, tag1 = tag1, self.tags[int(score.argmax())]
            found.append(tag1)
        return found

    def save(self, path: Path) -> None:
        """Sparse, one byte a weight; read back by `load` without pickle."""
        feature, tag = np.nonzero(self.weights[:-1])
        np.savez_compressed(
            path,
            tags=np.array(self.tags),
            hashes=np.fromiter(self.row, np.uint32),
            count=np.bincount(feature, minlength=len(self.row)).astype(np.uint8),
            tag=tag.astype(np.uint8),
            weight=self.weights[feature, tag].astype(np.int8),
            words=np.fromiter(self.word, np.uint32),
            seen=np.packbits(self.seen, axis=1),
        )


@lru_cache(1)
def load(path: Path = WEIGHTS) -> Tagger:
    """The tagger that ships with the package, read once."""
    with np.load(path, allow_pickle=False) as file:
        tags, hashes, count = file["tags"].tolist(), file["hashes"], file["count"]
        weights = np.zeros((len(hashes) + 1, len(tags)), np.int8)
        weights[np.repeat(np.arange(len(hashes)), count), file["tag"]] = file["weight"]
        seen = np.unpackbits(file["seen"], axis=1, count=len(tags)).astype(bool)
        return Tagger(tags, hashes, weights, file["words"], seen)
