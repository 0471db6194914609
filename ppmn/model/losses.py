"""BCE + Dice over the rounds (eq. 4-9 and the last equation of section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as fn
from torch import Tensor

from ppmn.config import Dice, ModelConfig


@dataclass(frozen=True)
class RoundLoss:
    """The two terms of one round's map."""

    bce: Tensor
    dice: Tensor


def bce_loss(H: Tensor, Y: Tensor, known: Tensor | None = None, pixels: float | None = None) -> Tensor:
    """Mean over all pixels of all rows; `known` (M, h, w) leaves pixels out, `pixels` is a global count."""
    loss = fn.binary_cross_entropy_with_logits(H, Y, weight=known, reduction="sum")
    if pixels is None:
        pixels = H.numel() if known is None else float(known.sum())
    return loss / max(pixels, 1)


def dice_loss(
    H: Tensor, Y: Tensor, form: Dice, known: Tensor | None = None, rows: float | None = None
) -> Tensor:
    """1 - Dice, mean over rows: with plain sums as printed, or squared and smoothed as released."""
    M = H.sigmoid() if known is None else H.sigmoid() * known
    Y = Y if known is None else Y * known
    both = 2 * (M * Y).sum((1, 2))
    if form == "squared":
        dice = both / (M.square().sum((1, 2)) + 1e-3 + Y.square().sum((1, 2)) + 1e-3)
    else:
        dice = both / (M.sum((1, 2)) + Y.sum((1, 2))).clamp(min=torch.finfo(M.dtype).tiny)
    return (1 - dice).sum() / max(len(H) if rows is None else rows, 1)


def ppm_losses(
    maps: Sequence[Tensor],
    Y: Tensor,
    config: ModelConfig,
    known: Tensor | None = None,
    pixels: float | None = None,
    rows: float | None = None,
) -> list[RoundLoss]:
    """BCE and Dice of every supervised round, at the resolution of Y (M, h, w)."""
    losses = []
    for raw in maps:
        H = raw
        if H.shape[-2:] != Y.shape[-2:]:
            H = fn.interpolate(H[None], Y.shape[-2:], mode="bilinear", align_corners=False)[0]
        losses.append(RoundLoss(bce_loss(H, Y, known, pixels), dice_loss(H, Y, config.dice, known, rows)))
    return losses


def total(losses: Sequence[RoundLoss]) -> Tensor:
    """The sum over rounds, both weights one."""
    return torch.stack([loss.bce + loss.dice for loss in losses]).sum()
