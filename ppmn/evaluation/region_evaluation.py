"""Measure the two-stage baseline on files of stage one: in the image's pixels, or by its own soft IoU."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ppmn.baselines.proposals import Proposals, StageOne
from ppmn.baselines.region_choice import RegionChoice, TwoStageGrounder, choose_regions, region_targets
from ppmn.data.narratives import AnnotatedPhrase, Narrative
from ppmn.data.panoptic import IGNORE_ID
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import instance_split
from ppmn.evaluation.metrics import AverageRecall, Protocol
from ppmn.evaluation.predictions import Answers, measurable
from ppmn.types import Mask, SegmentIds


def evaluate_regions(
    grounder: TwoStageGrounder | None,
    stage_one: StageOne,
    sources: Mapping[str, Sequence[Narrative]],
    *,
    protocol: Protocol = "full",
) -> AverageRecall:
    """Measure each annotated phrase once.

    Args:
        grounder: The second stage; None measures the oracle, which takes the best region of each annotated
            segment.
        stage_one: The proposals of every image.
        sources: Narratives by the name of their source.
        protocol: `full`, or `png256` to measure as the baseline's authors did.
    """
    if protocol == "ppmn2022":
        raise InputError("protocol ppmn2022 is defined only for response maps at 800/1333, not for regions")
    metric = AverageRecall(protocol)
    for source, narratives in sources.items():
        for narrative in narratives:
            proposals, ids = stage_one.read(narrative.image), narrative.image.ids()
            phrases = measurable(source, narrative, protocol)
            choices = _choices(grounder, proposals, narrative, list(phrases.values()), ids)
            for (key, phrase), choice in zip(phrases.items(), choices, strict=True):
                truth = np.isin(ids, phrase.segment_ids)
                update = partial(
                    metric.update_regions if protocol == "png256" else metric.update,
                    thing=phrase.isthing,
                    plural=phrase.plural,
                    instances=instance_split(phrase, narrative.image),
                )
                if choice is None:
                    update(key, None, truth)
                elif protocol == "png256":
                    update(key, [proposals.mask([row]) for row in choice.rows], truth)
                else:
                    update(key, proposals.mask(choice.rows) & (ids != IGNORE_ID), truth)
    return metric


def region_answers(grounder: TwoStageGrounder, stage_one: StageOne) -> Answers:
    """What the baseline answers, for `evaluate`: the union of a phrase's regions, None without an answer."""

    def answer(source: str, narrative: Narrative) -> Iterator[tuple[Mask | None, float]]:
        proposals, ids = stage_one.read(narrative.image), narrative.image.ids()
        phrases = list(measurable(source, narrative, "full").values())
        for choice in _choices(grounder, proposals, narrative, phrases, ids):
            yield (proposals.mask(choice.rows), choice.score) if choice else (None, 0.0)

    return answer


def _choices(
    grounder: TwoStageGrounder | None,
    proposals: Proposals,
    narrative: Narrative,
    phrases: Sequence[AnnotatedPhrase],
    ids: SegmentIds,
) -> Sequence[RegionChoice | None]:
    plural = [phrase.plural for phrase in phrases]
    if grounder:
        spans = [(phrase.start, phrase.end) for phrase in phrases]
        return grounder.ground(proposals, narrative.caption, spans, truly_plural=plural)
    targets = region_targets(ids, proposals.ids, [phrase.segment_ids for phrase in phrases], len(proposals))
    return [
        RegionChoice(choose_regions(row, plural=several, threshold=0.5), 1.0)
        for row, several in zip(targets, plural, strict=True)
    ]
