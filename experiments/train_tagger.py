"""Train the part-of-speech tagger: `python -m experiments.train_tagger TREEBANK [OUT]`.

TREEBANK holds the English Web Treebank as train.conllu.gz, dev.conllu.gz and test.conllu.gz. Sentences in
the style of spoken image descriptions (`experiments/narrative_words.py`) are drawn and added: the treebank
hardly knows "few people standing", "a parked car" or "white color t-shirt".
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
EPOCHS, DRAWN, SEEN_TWICE, SMALLEST = 8, 10000, 2, 3
# A word seen COMMON times has shown its tags, but for those of a RARE share of it that are under a FEW.
COMMON, FEW, RARE = 8, 5, 0.03
OPEN = 60  # a tag of so many words may be any word's


def read(path: Path) -> Iterator[Sentence]:
    """(form, Penn tag) pairs of a CoNLL-U file, without ranges and empty nodes."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            rows = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
            if words := [(row[1], row[4]) for row in rows if row[0].isdigit()]:
                yield words


class Training:
    """The averaged perceptron over features seen at least twice."""

    def __init__(self, corpus: list[Sentence]):
        self.tags = sorted({tag for sentence in corpus for _, tag in sentence})
        seen: Counter[int] = Counter()
        for sentence in corpus:
            words, tags = zip(*sentence, strict=True)
            for i in range(len(words)):
                tag2, tag1 = ("<s>", "<s>", *tags)[i : i + 2]
                seen.update(map(feature_hash, static_features(words, i) + tag_features(words, i, tag2, tag1)))
        self.row = {k: n for n, k in enumerate(sorted(k for k, n in seen.items() if n >= SEEN_TWICE))}
        self.weights = np.zeros((len(self.row), len(self.tags)), np.float32)
        self.late = np.zeros_like(self.weights)  # each change times the step it came at
        self.step = 1
        self.corpus = [(*zip(*s, strict=True), self.static(s)) for s in corpus]

    def rows(self, features: list[str]) -> np.ndarray:
        return np.array([r for f in features if (r := self.row.get(feature_hash(f))) is not None], np.int32)

    def static(self, sentence: Sentence) -> list[np.ndarray]:
        words = [word for word, _ in sentence]
        return [self.rows(static_features(words, i)) for i in range(len(words))]

    def epoch(self) -> float:
        """One pass in a new order; the share of right guesses on the way."""
        random.shuffle(self.corpus)
        right = total = 0
        for words, tags, static in self.corpus:
            tag2, tag1 = "<s>", "<s>"
            for i, tag in enumerate(tags):
                rows = np.concatenate([static[i], self.rows(tag_features(words, i, tag2, tag1))])
                guess = self.tags[int(self.weights[rows].sum(0).argmax())]
                if guess != tag:
                    self.learn(rows, self.tags.index(tag), self.tags.index(guess))
                right, total, self.step = right + (guess == tag), total + 1, self.step + 1
                tag2, tag1 = tag1, guess
        return right / total

    def learn(self, rows: np.ndarray, tag: int, guess: int) -> None:
        for column, sign in ((tag, 1), (guess, -1)):
            self.weights[rows, column] += sign
            self.late[rows, column] += sign * self.step

    def tagger(self) -> Tagger:
        """The average of all steps in whole numbers of a byte, without the features that hardly matter."""
        mean = self.weights - self.late / self.step
        small = np.clip(np.round(mean * 127 / np.quantile(np.abs(mean).max(1), 0.9995)), -127, 127)
        small[np.abs(small) < SMALLEST] = 0
        kept = np.flatnonzero(np.abs(small).max(1))
        weights = np.vstack([small[kept], np.zeros((1, len(self.tags)))]).astype(np.int8)
        return Tagger(self.tags, np.fromiter(self.row, np.uint32)[kept], weights, *self.seen())

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """The common words and the tags of each, but for rare ones; last the tags of any other word."""
        tags: dict[int, Counter[str]] = defaultdict(Counter)
        for words, given, _ in self.corpus:
            for word, tag in zip(words, given, strict=True):
                tags[feature_hash(normalize(word))][tag] += 1
        common = sorted(word for word, count in tags.items() if count.total() >= COMMON)
        kinds = Counter(tag for count in tags.values() for tag in count)
        rows = [
            [tags[word][tag] >= min(FEW, RARE * tags[word].total()) for tag in self.tags] for word in common
        ]
        any_word = [kinds[tag] >= OPEN and tag != "IN" for tag in self.tags]  # misspelt prepositions are many
        return np.array(common, np.uint32), np.array([*rows, any_word])


def accuracy(tagger: Tagger, corpus: list[Sentence]) -> float:
    pairs = [
        (tag, guess)
        for s in corpus
        for (_, tag), guess in zip(s, tagger.tag([word for word, _ in s]), strict=True)
    ]
    return sum(tag == guess for tag, guess in pairs) / len(pairs)


def main(treebank: Path, out: Path = TAGGER_FILE) -> None:
    random.seed(0)
    training = Training(list(read(treebank / "train.conllu.gz")) + sentences(DRAWN))
    for epoch in range(EPOCHS):
        print(f"epoch {epoch + 1}: {training.epoch():.4f} right while training", flush=True)
    tagger = training.tagger()
    print(
        "any word may be",
        *(tag for tag, any_word in zip(tagger.tags, tagger.allowed[-1], strict=True) if any_word),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    tagger.save(out)
    print(f"{out}: {out.stat().st_size:,} bytes, {len(tagger.row):,} features")
    for split in ("dev", "test"):
        print(f"{split} tag accuracy {accuracy(tagger, list(read(treebank / f'{split}.conllu.gz'))):.4f}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
