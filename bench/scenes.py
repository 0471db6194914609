"""How fast scenes are drawn, and how far colours alone lead on them.

python bench/scenes.py [NUMBER OF SCENES]
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppmn.data.narratives import read_narratives
from ppmn.data.panoptic import read_panoptic
from ppmn.evaluation.metrics import AverageRecall, PhraseKey, Scores
from ppmn.images import read_image
from ppmn.synthetic.regions import COLOURS, colour_codes
from ppmn.synthetic.scenes import write_scenes


def colour_match(phrase: str, codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Every pixel of a colour the phrase names; without a colour word, the whole scene."""
    named = [COLOURS.index(w) for w in phrase.lower().split() if w in COLOURS[1:]]
    return np.isin(codes, named) if named else np.ones_like(codes, bool)


def own_colour(truth: NDArray[np.bool_], codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Every pixel of the colour that most of the answer has: what no baseline can know."""
    return np.asarray(codes == np.bincount(codes[truth]).argmax())


def baselines(root: Path, split: str) -> tuple[Scores, Scores]:
    """Average Recall by the colours a phrase names, and by the colour its answer has."""
    panoptic = read_panoptic(root, split)
    named, owned = AverageRecall(), AverageRecall()
    for narrative in read_narratives(panoptic, lambda problem: None):
        ids = narrative.image.ids()
        codes = colour_codes(np.asarray(read_image(narrative.image.file)))
        for n, phrase in enumerate(narrative.phrases):
            if not phrase.segment_ids:
                continue
            key = PhraseKey(split, narrative.image.id, narrative.index, n)
            truth = np.isin(ids, phrase.segment_ids)
            text = narrative.caption[phrase.start : phrase.end]
            for recall, mask in ((named, colour_match(text, codes)), (owned, own_colour(truth, codes))):
                recall.update(key, mask, truth, thing=phrase.isthing, plural=phrase.plural)
    return named.compute(), owned.compute()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        root, start, cpu = Path(folder), time.perf_counter(), time.process_time()
        write_scenes(root, count, "val")
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        print(f"{count / wall:.1f} scenes a second, {count / cpu:.1f} a second of one core's time")
        scores = zip(("colours named", "colour of the answer"), baselines(root, "val"), strict=True)
        for name, score in scores:
            told = ", ".join(f"{k} {v:.1f}" for k, v in score.average_recall.items() if v is not None)
            print(f"{name}: {told}")


if __name__ == "__main__":
    main()
