"""The checkpoint of the two-stage baseline (González et al., ICCV 2021)."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ppmn.baselines.two_stage import RELEASED_PREFIX, TwoStage, TwoStageConfig
from ppmn.baselines.two_stage_folder import empty_two_stage
from ppmn.convert.unpickle import read_checkpoint, tensors_of
from ppmn.errors import InputError
from ppmn.model.folder import copy_tensors

_MARK = f"{RELEASED_PREFIX}encoder.cross_layers."


def two_stage_state(file: Path) -> dict[str, Tensor] | None:
    """The tensors of a two-stage checkpoint; None for any other file."""
    raw = read_checkpoint(file)
    raw = raw["model_state"] if isinstance(raw, Mapping) and "model_state" in raw else raw
    if not isinstance(raw, Mapping) or not any(_MARK in name for name in raw if isinstance(name, str)):
        return None
    return tensors_of(raw, str(file))


def convert_two_stage(state: Mapping[str, Tensor], tokenizer: Any, where: str) -> tuple[TwoStage, list[str]]:
    """The second stage with the tensors of a checkpoint, none missing and none left over, and a report."""
    ours = {name.removeprefix(RELEASED_PREFIX): tensor for name, tensor in state.items()}
    config = _config(ours, where)
    if len(tokenizer) != config.vocabulary:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} word pieces and {where} {config.vocabulary}; "
            "name a folder of bert-base-uncased with --text"
        )
    model = empty_two_stage(config)
    copy_tensors(model, ours, where)
    values = sum(tensor.numel() for tensor in ours.values())
    return model, [f"two-stage: {len(ours)} tensors, {values / 1e6:.2f} M values from {where}"]


def _config(state: Mapping[str, Tensor], where: str) -> TwoStageConfig:
    """The sizes that the tensors determine."""
    try:
        vocabulary, width = state["embeddings.word_embeddings.weight"].shape
        positions = len(state["embeddings.position_embeddings.weight"])
        return TwoStageConfig(
            width=width,
            heads=max(width // 64, 1),
            ffn=len(state["encoder.layer.0.intermediate.dense.weight"]),
            language_layers=_count(state, "layer"),
            region_layers=_count(state, "single_layers"),
            cross_layers=_count(state, "cross_layers"),
            region_size=state["encoder.visn_fc.visn_fc.weight"].shape[1],
            vocabulary=vocabulary,
            positions=positions,
            max_pieces=min(TwoStageConfig.max_pieces, positions),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(f"{where} holds no complete two-stage baseline (at {error})") from error


def _count(names: Iterable[str], kind: str) -> int:
    """How many layers of a kind the encoder has."""
    found = (re.match(rf"encoder\.{kind}\.(\d+)\.", name) for name in names)
    return 1 + max((int(match[1]) for match in found if match), default=-1)
