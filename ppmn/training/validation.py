"""How a training run measures itself: Average Recall on images held out, and a sheet of a few of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ppmn.config import TrainConfig
from ppmn.data.narratives import Narrative
from ppmn.data.partition import held_out
from ppmn.data.targets import full_masks
from ppmn.evaluation.evaluate import evaluate
from ppmn.evaluation.figures import SheetRow, sheet
from ppmn.evaluation.region_rows import own_answers
from ppmn.grounding.grounder import Grounder
from ppmn.images import read_image
from ppmn.model.method import Method
from ppmn.training.sources import Source

SHEET_ROWS = 6


def validation_narratives(sources: Sequence[Source], config: TrainConfig) -> dict[str, list[Narrative]]:
    """Narratives of the images that are held out, the same at every evaluation."""
    if config.validation_images == 0:
        return {}
    places = [
        (source, i)
        for source in sources
        for i in range(len(source))
        if held_out(source.annotation(i), config.validation_fraction)
    ]
    step = max(1, math.ceil(len(places) / config.validation_images))
    chosen: dict[str, list[Narrative]] = {}
    for source, index in places[::step]:
        chosen.setdefault(source.name, []).append(source.narrative(index, config.seed))
    return chosen


def validate(
    model: Method, narratives: Mapping[str, Sequence[Narrative]], sheet_file: Path | None = None
) -> dict[str, float | None]:
    """Average Recall of every split, protocol `full`; a few of the narratives are drawn as a sheet."""
    grounder = Grounder(model, device=str(next(model.parameters()).device))
    scores = evaluate(own_answers(grounder), narratives).metric.compute()
    if sheet_file is not None:
        everything = [n for source in narratives.values() for n in source]
        step = max(1, len(everything) // SHEET_ROWS)
        rows = [sheet_row(grounder, narrative) for narrative in everything[::step][:SHEET_ROWS]]
        sheet(rows, sheet_file)
    return scores.average_recall


def sheet_row(grounder: Grounder, narrative: Narrative) -> SheetRow:
    """One narrative with its annotated and its predicted masks."""
    image, phrases = read_image(narrative.image.file), narrative.grounded
    spans = [(p.start, p.end) for p in phrases]
    truth = full_masks(narrative.image.ids(), [p.segment_ids for p in phrases])
    only_grounded = replace(narrative, phrases=phrases)
    masks = [mask for mask, _ in own_answers(grounder)("", only_grounded) if mask is not None]
    return SheetRow(image, narrative.caption, spans, list(truth), masks)
