"""Generated narratives beside real ones: length, variety of words, repetition of templates, time.

python bench/narratives.py --texts FILE [--print N] ROOT[:SPLIT] ...

FILE holds real narratives, one per line. A template is a sentence in which all but the most common words
(articles, prepositions, verbs of seeing, places) are replaced by a blank, one per run of words.
"""

import argparse
import re
import time
from collections import Counter
from pathlib import Path

import numpy as np

from ppmn.cli.arguments import parse_spec
from ppmn.data.panoptic import read_panoptic
from ppmn.images import read_image
from ppmn.synthetic.captions import GeneratedCaption
from ppmn.synthetic.narrator import Narrator, rng_for

KEPT = frozenset(
    re.findall(
        r"\w+",
        """a an the this that these of in on at to with by for from and or also is are can could we i see
        there here it image picture photo background foreground left right top bottom middle center side
        front few some many two three four one another other which taken clicked consists wearing
        holding standing sitting color""",
    )
)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def sentences(text: str) -> list[str]:
    return [s for s in re.split(r"[.!?]+", text) if s.strip()]


def template(sentence: str) -> str:
    """`In this image there is a red car` -> `in this image there is a _`."""
    return re.sub(r"(_ ?)+", "_ ", " ".join(w if w in KEPT else "_" for w in words(sentence))).strip()


def report(name: str, texts: list[str], tokens: int) -> str:
    """One line of the table; type-token ratio over the first `tokens` words, since it falls with length."""
    spoken = [w for t in texts for w in words(t)]
    ratio = len(set(spoken[:tokens])) / min(tokens, len(spoken))
    parts = [s for t in texts for s in sentences(t)]
    templates = Counter(template(s) for s in parts)
    repeated = sum(n for n in templates.values() if n > 1) / len(parts)
    whole = Counter(" | ".join(template(s) for s in sentences(t)) for t in texts)
    copied = sum(n for n in whole.values() if n > 1) / len(texts)
    lengths = f"{len(spoken) / len(texts):.1f} | {len(parts) / len(texts):.1f}"
    return f"| {name} | {len(texts)} | {lengths} | {ratio:.4f} | {repeated:.2f} | {copied:.3f} |"


def generate(spec: str, count: int, epoch: int) -> tuple[list[GeneratedCaption], float]:
    """Narratives of up to `count` images spread over a data set, and the milliseconds per narrative."""
    data = parse_spec(spec)
    panoptic = read_panoptic(data.root, data.splits[0])
    narrator = Narrator(panoptic.categories, complete=panoptic.complete)
    captions, spent = [], 0.0
    chosen = np.linspace(0, len(panoptic.images) - 1, min(count, len(panoptic.images))).astype(int)
    for n in chosen:
        image = panoptic.images[n]
        ids, pixels = image.ids(), np.asarray(read_image(image.file))
        start = time.process_time()
        captions.append(narrator(image, ids, pixels, rng_for(0, epoch, int(n))))
        spent += time.process_time() - start
    return captions, 1000 * spent / len(captions)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", metavar="ROOT[:SPLIT]")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=300, help="images per data set")
    parser.add_argument("--epoch", type=int, default=0)
    parser.add_argument("--print", type=int, default=0, dest="printed")
    args = parser.parse_args()
    real = args.texts.read_text(encoding="utf-8").splitlines()
    generated: list[GeneratedCaption] = []
    print("| data | noun phrases | grounded | ms |\n|---|---|---|---|")
    for spec in args.data:
        captions, spent = generate(spec, args.count, args.epoch)
        phrases = np.mean([len(t.phrases) for t in captions])
        grounded = np.mean([sum(bool(p.segment_ids) for p in t.phrases) for t in captions])
        print(f"| {Path(spec).name} | {phrases:.1f} | {grounded:.1f} | {spent:.1f} |")
        generated += captions
    texts = [generated[int(i)].caption for i in np.random.default_rng(0).permutation(len(generated))]
    tokens = min(sum(len(words(t)) for t in side) for side in (real, texts))
    print(f"\n| narratives | number | words | sentences | types per token (first {tokens}) ", end="")
    print("| sentences of a repeated template | narratives of one |\n|---|---|---|---|---|---|---|")
    print(report("real", real, tokens))
    print(report("generated", texts, tokens))
    print("\n" + "\n".join(f"* {t}" for t in texts[: args.printed]))


if __name__ == "__main__":
    main()
