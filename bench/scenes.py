"""How fast scenes are drawn, and the Average Recall of colors alone on them.

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
from ppmn.synthetic.regions import COLOR_NAMES, color_indices
from ppmn.synthetic.scenes import write_scenes


def color_match(phrase: str, colors: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Every pixel of a color that the phrase names; without a color word, the whole scene."""
    named = [COLOR_NAMES.index(w) for w in phrase.lower().split() if w in COLOR_NAMES[1:]]
    return np.isin(colors, named) if named else np.ones_like(colors, bool)


def main_color(truth: NDArray[np.bool_], colors: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Every pixel of the color that most of the answer has, which no baseline can know."""
    return np.asarray(colors == np.bincount(colors[truth]).argmax())


def baselines(root: Path, split: str) -> tuple[Scores, Scores]:
    """Average Recall by the colors a phrase names, and by the color of its answer."""
    panoptic = read_panoptic(root, split)
    named, owned = AverageRecall(), AverageRecall()
    for narrative in read_narratives(panoptic, lambda problem: None):
        ids = narrative.image.ids()
        colors = color_indices(np.asarray(read_image(narrative.image.file)))
        for n, phrase in enumerate(narrative.phrases):
            if not phrase.segment_ids:
                continue
            key = PhraseKey(split, narrative.image.id, narrative.index, n)
            truth = np.isin(ids, phrase.segment_ids)
            text = narrative.caption[phrase.start : phrase.end]
            for recall, mask in ((named, color_match(text, colors)), (owned, main_color(truth, colors))):
                recall.update(key, mask, truth, thing=phrase.isthing, plural=phrase.plural)
    return named.compute(), owned.compute()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        root, start, cpu = Path(folder), time.perf_counter(), time.process_time()
        write_scenes(root, count, split="val")
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        print(f"{count / wall:.1f} scenes per second, {count / cpu:.1f} per second of CPU time")
        scores = zip(("colors named", "color of the answer"), baselines(root, "val"), strict=True)
        for name, score in scores:
            figures = ", ".join(f"{k} {v:.1f}" for k, v in score.average_recall.items() if v is not None)
            print(f"{name}: {figures}")


if __name__ == "__main__":
    main()
