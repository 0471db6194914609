"""What a training run measures itself by: photos held out, the ruler, a sheet of the same few narratives."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ppmn.config import TrainConfig
from ppmn.data.narratives import Narrative
from ppmn.data.targets import full_masks
from ppmn.evaluation.evaluate import evaluate, model_answers
from ppmn.evaluation.figures import SheetRow, sheet
from ppmn.grounding.grounder import Grounder
from ppmn.images import read_image
from ppmn.model.network import PPMN
from ppmn.training.sources import Source, held_out

SHOWN = 6  # narratives on a sheet


def validation(sources: Sequence[Source], config: TrainConfig) -> dict[str, list[Narrative]]:
    """Narratives of the photos that are held out, the same at every evaluation."""
    places = [
        (s, i) for s in sources for i in range(len(s)) if held_out(s.image(i), config.validation_fraction)
    ]
    step = max(1, math.ceil(len(places) / max(config.validation_images, 1)))
    chosen: dict[str, list[Narrative]] = {}
    for source, index in places[::step]:
        chosen.setdefault(source.name, []).append(source.narrative(index, config.seed))
    return chosen


def validate(
    model: PPMN, held: Mapping[str, Sequence[Narrative]], sheet_file: Path | None
) -> dict[str, float | None]:
    """Average Recall of every split, protocol `full`, on the validation photos."""
    device = str(next(model.parameters()).device)
    grounder = Grounder(model, device=device)
    scores = evaluate(model_answers(grounder), held).metric.compute()
    if sheet_file is not None:
        first = [n for narratives in held.values() for n in narratives]
        step = max(1, len(first) // SHOWN)
        sheet([row(grounder, narrative) for narrative in first[::step][:SHOWN]], sheet_file)
    return scores.average_recall


def row(grounder: Grounder, narrative: Narrative) -> SheetRow:
    """One narrative as a line of the sheet."""
    photo, phrases = read_image(narrative.image.file), narrative.grounded
    spans = [(p.start, p.end) for p in phrases]
    truth = full_masks(narrative.image.ids(), [p.segment_ids for p in phrases])
    maps = grounder.response_maps(photo, narrative.caption, spans)
    return SheetRow(photo, narrative.caption, spans, list(truth), [m > grounder.threshold for m in maps])
