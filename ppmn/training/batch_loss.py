"""The loss of a batch: all rounds, and pointing where the network points."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ppmn.config import TrainConfig
from ppmn.model.losses import RoundLoss, point_loss, ppm_losses, total_loss
from ppmn.model.network import PPMN, Maps
from ppmn.model.pointing import TOKEN_STRIDE
from ppmn.training.dataset import BatchTargets, Item, target_scale
from ppmn.training.encoder_inputs import cached_words, image_inputs
from ppmn.training.feature_cache import FeatureCaches


@dataclass(frozen=True)
class BatchLoss:
    """The terms of every round, and the loss of pointing."""

    rounds: list[RoundLoss]
    pointing: Tensor  # zero where the network does not point

    @property
    def total(self) -> Tensor:
        return total_loss(self.rounds) + self.pointing


def batch_loss(
    network: nn.Module,
    model: PPMN,
    caches: FeatureCaches,
    items: Sequence[Item],
    targets: BatchTargets,
    config: TrainConfig,
    pixels: float,
    rows: float,
) -> BatchLoss:
    """Run the network (`model`, perhaps wrapped) on items; means are over `pixels` and `rows`."""
    parameter = next(model.head.parameters())
    device, dtype = parameter.device, parameter.dtype
    images = image_inputs(items, model, caches.image, device)
    words = cached_words(items, model, caches.text, device)
    captions = [caption for item in items for caption in item.captions]
    per_image = [len(item.captions) for item in items]
    targets = targets.to(device, dtype)
    inside = targets.inside(TOKEN_STRIDE * target_scale(config)) if config.model.pointing else None
    with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
        maps, _ = network(images, captions, per_image=per_image, words=words, inside=inside)
    H = [h.to(dtype) for h in maps.H]
    rounds = ppm_losses(H, targets.Y, config.model, targets.valid, pixels, rows)
    return BatchLoss(rounds, _pointing_loss(maps, targets, inside, config, pixels, rows))


def _pointing_loss(
    maps: Maps, targets: BatchTargets, inside: Tensor | None, config: TrainConfig, pixels: float, rows: float
) -> Tensor:
    """The losses of pointing and of the objects that are drawn without a phrase."""
    if maps.pointed is None or maps.objects is None or inside is None or targets.valid is None:
        return targets.Y.new_zeros(())
    single, Y = targets.single, targets.Y
    drawn = maps.objects[single].to(Y.dtype)
    (objects,) = ppm_losses([drawn], Y[single], config.model, targets.valid[single], pixels, rows)
    return point_loss(maps.pointed, inside, targets.absent, rows) + objects.bce + objects.dice
