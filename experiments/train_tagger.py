"""Train the part-of-speech tagger: `python -m experiments.train_tagger TREEBANK [OUT]`.

TREEBANK holds the English Web Treebank as train.conllu.gz, dev.conllu.gz and test.conllu.gz. Generated
sentences in the style of spoken image descriptions (`narrative_words.py`) are added, because the treebank has
few phrases such as "few people standing", "a parked car" or "white color t-shirt".
"""

import gzip
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.narrative_words import sentences
from ppmn.phrases.tagger import TAGGER_FILE, Tagger, feature_hash, normalize, static_features, tag_features

Sentence = list[tuple[str, str]]
EPOCHS = 8
GENERATED_SENTENCES = 10_000
MIN_FEATURE_COUNT = 2
MIN_WEIGHT = 3  # of 127; smaller weights are set to 0
COMMON_WORD = 8  # occurrences from which on a word takes only tags that it was seen with
MIN_TAG_COUNT, MIN_TAG_FRACTION = 5, 0.03  # rarer tags of a common word are taken for mistakes
OPEN_CLASS = 60  # words from which on a tag is allowed for unknown words


def read_conllu(path: Path) -> Iterator[Sentence]:
    """(form, Penn tag) pairs of a CoNLL-U file, without ranges and empty nodes."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            rows = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
            if words := [(row[1], row[4]) for row in rows if row[0].isdigit()]:
                yield words


class Training:
    """An averaged perceptron over features that occur at least twice."""

    def __init__(self, corpus: list[Sentence]) -> None:
        self.tags = sorted({tag for sentence in corpus for _, tag in sentence})
        seen: Counter[int] = Counter()
        for sentence in corpus:
            words, tags = zip(*sentence, strict=True)
            for i in range(len(words)):
                tag2, tag1 = ("<s>", "<s>", *tags)[i : i + 2]
                seen.update(map(feature_hash, static_features(words, i) + tag_features(words, i, tag2, tag1)))
        self.row = {k: n for n, k in enumerate(sorted(k for k, n in seen.items() if n >= MIN_FEATURE_COUNT))}
        self.weights = np.zeros((len(self.row), len(self.tags)), np.float32)
        self.weighted_updates = np.zeros_like(self.weights)  # each update times its step, for the average
        self.step = 1
        self.corpus = [(*zip(*s, strict=True), self.static(s)) for s in corpus]

    def rows(self, features: list[str]) -> np.ndarray:
        return np.array([r for f in features if (r := self.row.get(feature_hash(f))) is not None], np.int32)

    def static(self, sentence: Sentence) -> list[np.ndarray]:
        words = [word for word, _ in sentence]
        return [self.rows(static_features(words, i)) for i in range(len(words))]

    def epoch(self) -> float:
        """One pass in a new order; returns the accuracy on the way."""
        random.shuffle(self.corpus)
        correct = total = 0
        for words, tags, static in self.corpus:
            tag2, tag1 = "<s>", "<s>"
            for i, tag in enumerate(tags):
                rows = np.concatenate([static[i], self.rows(tag_features(words, i, tag2, tag1))])
                guess = self.tags[int(self.weights[rows].sum(0).argmax())]
                if guess != tag:
                    self.update(rows, self.tags.index(tag), self.tags.index(guess))
                correct += guess == tag
                total += 1
                self.step += 1
                tag2, tag1 = tag1, guess
        return correct / total

    def update(self, rows: np.ndarray, tag: int, guess: int) -> None:
        for column, sign in ((tag, 1), (guess, -1)):
            self.weights[rows, column] += sign
            self.weighted_updates[rows, column] += sign * self.step

    def tagger(self) -> Tagger:
        """The average over all steps, quantised to bytes, without features whose weights are all 0."""
        mean = self.weights - self.weighted_updates / self.step
        small = np.clip(np.round(mean * 127 / np.quantile(np.abs(mean).max(1), 0.9995)), -127, 127)
        small[np.abs(small) < MIN_WEIGHT] = 0
        kept = np.flatnonzero(np.abs(small).max(1))
        weights = np.vstack([small[kept], np.zeros((1, len(self.tags)))]).astype(np.int8)
        return Tagger(self.tags, np.fromiter(self.row, np.uint32)[kept], weights, *self.seen())

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """The common words and the tags allowed for each; the last row is for all other words."""
        tags: dict[int, Counter[str]] = defaultdict(Counter)
        for words, given, _ in self.corpus:
            for word, tag in zip(words, given, strict=True):
                tags[feature_hash(normalize(word))][tag] += 1
        common = sorted(word for word, count in tags.items() if count.total() >= COMMON_WORD)
        kinds = Counter(tag for count in tags.values() for tag in count)
        rows = [
            [
                tags[word][tag] >= min(MIN_TAG_COUNT, MIN_TAG_FRACTION * tags[word].total())
                for tag in self.tags
            ]
            for word in common
        ]
        any_word = [
            kinds[tag] >= OPEN_CLASS and tag != "IN" for tag in self.tags
        ]  # many misspelt prepositions
        return np.array(common, np.uint32), np.array([*rows, any_word])


def accuracy(tagger: Tagger, corpus: list[Sentence]) -> float:
    pairs = [
        (tag, guess)
        for s in corpus
        for (_, tag), guess in zip(s, tagger.tag([word for word, _ in s]), strict=True)
    ]
    return sum(tag == guess for tag, guess in pairs) / len(pairs)


def save_tagger(tagger: Tagger, file: Path) -> None:
    """Write the weights, sparse and in one byte each, as `load_tagger` reads them."""
    feature, tag = np.nonzero(tagger.weights[:-1])
    np.savez_compressed(
        file,
        tags=np.array(tagger.tags),
        hashes=np.fromiter(tagger.row, np.uint32),
        count=np.bincount(feature, minlength=len(tagger.row)).astype(np.uint8),
        tag=tag.astype(np.uint8),
        weight=tagger.weights[feature, tag].astype(np.int8),
        words=np.fromiter(tagger.word, np.uint32),
        seen=np.packbits(tagger.allowed, axis=1),
    )


def main(treebank: Path, out: Path = TAGGER_FILE) -> None:
    random.seed(0)
    training = Training(list(read_conllu(treebank / "train.conllu.gz")) + sentences(GENERATED_SENTENCES))
    for epoch in range(EPOCHS):
        print(f"epoch {epoch + 1}: training accuracy {training.epoch():.4f}", flush=True)
    tagger = training.tagger()
    print(
        "any word may be",
        *(tag for tag, any_word in zip(tagger.tags, tagger.allowed[-1], strict=True) if any_word),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    save_tagger(tagger, out)
    print(f"{out}: {out.stat().st_size:,} bytes, {len(tagger.row):,} features")
    for split in ("dev", "test"):
        print(
            f"{split} tag accuracy {accuracy(tagger, list(read_conllu(treebank / f'{split}.conllu.gz'))):.4f}"
        )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
