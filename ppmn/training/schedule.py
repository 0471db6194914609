"""Learning rates, and the moving average of the weights."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ppmn.config import TrainConfig

Parameters = Mapping[str, Tensor]


def parameter_groups(config: TrainConfig, parameters: Parameters) -> list[dict[str, Any]]:
    """The trained parameters by part, each part with its own base rate."""
    rates = {
        "head": config.lr,
        "image_encoder.adapter": config.lr,  # new, so it learns as fast as the head
        "text_encoder": config.lr_text,
        "image_encoder": config.lr_image,
    }
    left, groups = dict(parameters), []
    for part, rate in rates.items():
        mine = [left.pop(name) for name in list(left) if name.startswith(f"{part}.")]
        if mine:
            groups.append({"params": mine, "base": rate, "part": part})
    if left:  # of a method without a head
        groups.append({"params": list(left.values()), "base": config.lr, "part": "method"})
    return groups


def batch_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Running means and variances of batch norms, which training changes without a gradient."""
    norms = {n: m for n, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    return {f"{n}.{name}": value for n, m in norms.items() for name, value in m.named_buffers()}


def learning_rate(config: TrainConfig, part: str, base: float, *, epoch: int, step: int, steps: int) -> float:
    """The rate of a part at a step of `steps` in all; `halving` leaves the text encoder's as it is."""
    warmup = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    if config.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * min(step / max(steps, 1), 1)))
    elif part == "text_encoder":
        factor = 1.0
    else:
        factor = 0.5 ** max(0, (epoch - config.halve_from) // config.halve_every + 1)
    return base * warmup * factor


class WeightAverage:
    """An exponential moving average of the trained weights; with a decay of 0 it does nothing."""

    def __init__(self, parameters: Parameters, decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.values = {n: p.detach().clone() for n, p in parameters.items()} if decay else {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after `step` steps, faster in the first steps."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in self.values.items():
            value.lerp_(self.parameters[name], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network with averaged weights, its own weights afterwards."""
        own = {name: self.parameters[name].detach().clone() for name in self.values}
        copy_weights(self.parameters, self.values)
        try:
            yield
        finally:
            copy_weights(self.parameters, own)


@torch.no_grad()
def copy_weights(parameters: Parameters, values: Mapping[str, Tensor]) -> None:
    """Overwrite parameters by name."""
    for name, value in values.items():
        parameters[name].copy_(value)
