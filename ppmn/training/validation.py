"""What a training run measures itself by: photos held out, the ruler, a sheet of the same few narratives."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import read_photo
from ppmn.data.targets import masks_full
from ppmn.evaluation.evaluate import evaluate, model_answers
from ppmn.evaluation.figures import SheetRow, sheet
from ppmn.grounding.grounder import Grounder
from ppmn.model.network import PPMN
from ppmn.presets import TrainConfig
from ppmn.training.sources import Source, held_out

SHOWN = 6  # narratives on a sheet


def validation(sources: Sequence[Source], config: TrainConfig) -> dict[str, list[Narrative]]:
    """Narratives of the photos that are held out, the same at every evaluation."""
    places = [(s, i) for s in sources for i in range(len(s)) if held_out(s.image(i), config.validation)]
    step = max(1, math.ceil(len(places) / max(config.validation_photos, 1)))
    chosen: dict[str, list[Narrative]] = {}
    for source, index in places[::step]:
        chosen.setdefault(source.name, []).append(source.narrative(index, config.seed))
    return chosen


def validate(
    model: PPMN, held: Mapping[str, Sequence[Narrative]], sheet_file: Path | None
) -> dict[str, float | None]:
    """Average Recall of every split, protocol `full`, on the validation photos."""
    device = str(next(model.parameters()).device)
    grounder = Grounder(model, device)
    scores = evaluate(model_answers(grounder), held).metric.compute()
    if sheet_file is not None:
        first = [n for narratives in held.values() for n in narratives]
        step = max(1, len(first) // SHOWN)
        sheet([row(grounder, narrative) for narrative in first[::step][:SHOWN]], sheet_file)
    return scores.average_recall


def row(grounder: Grounder, narrative: Narrative) -> SheetRow:
    """One narrative as a line of the sheet."""
    photo, phrases = read_photo(narrative.image.photo), narrative.grounded
    spans = [(p.start, p.end) for p in phrases]
    truth = masks_full(narrative.image.ids(), [p.segment_ids for p in phrases])
    maps = grounder.predict(photo, narrative.caption, spans, "full")
    return SheetRow(photo, narrative.caption, spans, list(truth), [m > grounder.threshold for m in maps])
