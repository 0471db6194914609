"""Measure a model on Ray: the narratives are shared by a pool of actors, and the figures stay the same."""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import DataSpec
from ppmn.data.partition import SplitPart
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import EvaluationRun, evaluate, open_narratives_of
from ppmn.evaluation.grounder_answers import grounder_answers
from ppmn.evaluation.metrics import AverageRecall, Protocol
from ppmn.grounding.corpus_pool import PoolOptions, connected, run_pool
from ppmn.grounding.grounder import load

_NARRATIVES = 16  # of a source that an actor measures at a time


def evaluate_on_ray(
    model: str,
    specs: Sequence[DataSpec],
    sources: Mapping[str, Sequence[Narrative]],
    pool: PoolOptions,
    *,
    part: SplitPart = "all",
    protocol: Protocol = "full",
    keep_predictions: bool = False,
) -> EvaluationRun:
    """Measure each annotated phrase once, as `evaluate` does.

    Args:
        model: The name of a model, or a folder that all nodes can read.
        specs: The data sets, which all nodes can read.
        sources: What `open_narratives_of` returns for them.
        pool: Where the work is done; with as many threads as one process has, the figures are its figures.
        part: The part of the sources that is measured.
        protocol: How masks are compared.
        keep_predictions: Keep the masks.

    Returns:
        What was found.

    Raises:
        InputError: Ray is not installed or does not answer, or a narrative cannot be measured.
    """
    run = EvaluationRun(AverageRecall(protocol), {})
    rows = [
        {"source": source, "first": first, "last": min(first + _NARRATIVES, len(narratives))}
        for source, narratives in sources.items()
        for first in range(0, len(narratives), _NARRATIVES)
    ]
    arguments: dict[str, Any] = {"model": model, "specs": list(specs), "part": part, "protocol": protocol}
    arguments |= {"keep_predictions": keep_predictions, "device": pool.device, "threads": pool.threads}
    total = sum(len(narratives) for narratives in sources.values())
    with connected(pool.address) as ray, tqdm(total=total, unit="narrative", disable=None) as bar:
        for done in run_pool(ray, NarrativeWorker, arguments, rows, pool):
            if done["fault"]:
                raise InputError(done["fault"])
            scores, predictions = pickle.loads(done["found"])
            run.metric.merge(scores)
            run.predictions.update(predictions)
            bar.update(done["narratives"])
    return run


class NarrativeWorker:
    """Measures the narratives that an actor is given."""

    def __init__(
        self,
        model: str,
        specs: Sequence[DataSpec],
        part: SplitPart,
        protocol: Protocol,
        keep_predictions: bool,
        device: str | None,
        threads: int | None,
    ) -> None:
        self.sources = open_narratives_of(specs, part)
        self.answers = grounder_answers(load(model, device=device, threads=threads), protocol)
        self.protocol, self.keep_predictions = protocol, keep_predictions

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Measure a range of a source; the scores, or a sentence."""
        narratives = [self.sources[row["source"]][i] for i in range(row["first"], row["last"])]
        try:
            found = self._measure({row["source"]: narratives})
            return {"fault": "", "found": pickle.dumps(found), "narratives": len(narratives)}
        except InputError as error:
            return {"fault": str(error), "found": b"", "narratives": 0}

    def _measure(self, sources: Mapping[str, Sequence[Narrative]]) -> tuple[dict, dict]:
        options = {"protocol": self.protocol, "keep_predictions": self.keep_predictions}
        found = evaluate(self.answers, sources, **options)  # type: ignore[arg-type]
        return dict(found.metric.phrase_scores), found.predictions
