"""Fill the cache of frozen encoders on Ray, before `ppmn train --cache` reads it."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ppmn.config import TrainConfig
from ppmn.data.panoptic import DataSpec
from ppmn.errors import InputError
from ppmn.grounding.corpus_pool import PoolOptions, connected, run_pool
from ppmn.training.dataset import Item, TrainingSet
from ppmn.training.encoder_inputs import cached_words, image_inputs, open_caches
from ppmn.training.initial import initial_model
from ppmn.training.sources import open_training_sources

_log = logging.getLogger(__name__)
_SAMPLES = 16  # that an actor encodes at a time


def fill_cache(
    config: TrainConfig,
    specs: Sequence[DataSpec],
    cache: Path,
    pool: PoolOptions,
    *,
    init: Path | None = None,
) -> int:
    """Encode all training samples into the cache; entries that are there are kept.

    Args:
        config: The configuration of the run that will read the cache.
        specs: Its data sets, which all nodes can read.
        cache: The folder of the cache, which all nodes can write to.
        pool: Where the work is done.
        init: The model folder that the run starts from.

    Returns:
        How many samples the cache now serves.

    Raises:
        InputError: Ray does not answer, features cannot be cached, or the cache cannot be written.
    """
    cache = cache.expanduser().absolute()  # a node that lacks the current folder must not take another one
    arguments = {"config": config, "specs": list(specs), "cache": cache, "init": init}
    data = open_cached_set(config, specs, cache, init)
    numbers = data_numbers(data)
    rows = [{"numbers": numbers[first : first + _SAMPLES]} for first in range(0, len(numbers), _SAMPLES)]
    done = 0
    with connected(pool.address) as ray, tqdm(total=len(numbers), unit="sample", disable=None) as bar:
        for row in run_pool(ray, CacheWorker, arguments, rows, pool):
            if row["fault"]:
                raise InputError(row["fault"])
            for reason in filter(None, row["unreadable"].split("\n")):
                _log.warning("%s", reason)
            bar.update(row["samples"])
            done += row["samples"]
    return done


def open_cached_set(
    config: TrainConfig, specs: Sequence[DataSpec], cache: Path, init: Path | None
) -> TrainingSet:
    """The training set of a run with its caches."""
    model = initial_model(config, init).eval()
    sources = open_training_sources(specs)
    return TrainingSet(sources, config, model, open_caches(config, cache, model, sources))


def data_numbers(data: TrainingSet) -> list[int]:
    """The numbers of all samples whose encoded images differ."""
    found = []
    for number, (s, _) in enumerate(data.references):
        source = data.sources[s]
        copied = data.config.augment.fixed and source.narratives is None
        copies = math.ceil(source.weight) if copied else 1
        found += [number + copy * len(data) for copy in range(copies)]
    return found


class CacheWorker:
    """Encodes the samples that an actor is given."""

    def __init__(
        self, config: TrainConfig, specs: Sequence[DataSpec], cache: Path, init: Path | None
    ) -> None:
        self.data = open_cached_set(config, specs, cache, init)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = self.data.model.to(self.device)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Encode some samples; how many there were, or a sentence."""
        unreadable, samples = [], 0
        try:
            for number in row["numbers"]:
                item = self.data[(0, int(number))]
                if isinstance(item, Item):
                    precision = self.data.config.precision
                    image_inputs([item], self.model, self.data.caches.image, self.device, precision)
                    cached_words([item], self.model, self.data.caches.text, self.device)
                    samples += 1
                else:
                    unreadable.append(" ".join(item.reason.split()))
        except InputError as error:
            return {"fault": str(error), "samples": samples, "unreadable": ""}
        return {"fault": "", "samples": samples, "unreadable": "\n".join(unreadable)}
