"""BCE and Dice losses of all rounds (sections 3.2 and 3.3), and the loss of pointing."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as fn
from torch import Tensor

from ppmn.config import Dice, ModelConfig
from ppmn.model.pointing import Pointed


@dataclass(frozen=True)
class RoundLoss:
    """The two terms of one round's loss."""

    bce: Tensor
    dice: Tensor


def bce_loss(H: Tensor, Y: Tensor, valid: Tensor | None = None, pixels: float | None = None) -> Tensor:
    """The mean over the valid pixels of all queries; `pixels` is their count in the whole batch."""
    loss = fn.binary_cross_entropy_with_logits(H, Y, weight=valid, reduction="sum")  # eq. 4
    if pixels is None:
        pixels = H.numel() if valid is None else float(valid.sum())
    return loss / max(pixels, 1)  # eq. 5, the same number as eq. 6


def dice_loss(
    H: Tensor, Y: Tensor, form: Dice, valid: Tensor | None = None, queries: float | None = None
) -> Tensor:
    """The mean over queries of 1 - Dice: plain as in the paper, or squared and smoothed as released."""
    M = H.sigmoid()  # eq. 3
    if valid is not None:
        M, Y = M * valid, Y * valid
    both = 2 * (M * Y).sum((1, 2))  # (M,)
    if form == "squared":
        loss = 1 - both / (M.square().sum((1, 2)) + 1e-3 + Y.square().sum((1, 2)) + 1e-3)
    else:
        loss = 1 - both / (M.sum((1, 2)) + Y.sum((1, 2))).clamp(min=torch.finfo(M.dtype).tiny)  # eq. 7
    return loss.sum() / max(len(H) if queries is None else queries, 1)  # eq. 8


def ppm_losses(
    maps: Sequence[Tensor],
    Y: Tensor,
    config: ModelConfig,
    valid: Tensor | None = None,
    pixels: float | None = None,
    queries: float | None = None,
) -> list[RoundLoss]:
    """BCE and Dice of every round at the resolution of Y (M, h, w), counted where `valid` (M, h, w) is 1.

    `pixels` and `queries` are the counts to divide by where the batch is larger than Y, as in
    distributed training.
    """
    losses = []
    for raw in maps:
        H = raw
        if not len(H):
            H = H.reshape(Y.shape)
        elif H.shape[-2:] != Y.shape[-2:]:
            H = fn.interpolate(H[None], Y.shape[-2:], mode="bilinear", align_corners=False)[0]
        bce = bce_loss(H, Y, valid, pixels)
        losses.append(RoundLoss(bce, dice_loss(H, Y, config.dice, valid, queries)))
    return losses


def total_loss(losses: Sequence[RoundLoss]) -> Tensor:
    """The sum over all rounds, the last one included."""
    rounds = [loss.bce + loss.dice for loss in losses]  # eq. 9
    return torch.stack(rounds).sum()  # eq. 16


def point_loss(pointed: Pointed, inside: Tensor, absent: Tensor, queries: float | None = None) -> Tensor:
    """The mean over queries of minus the log of the softmax mass inside the mask.

    `inside` (M, n) says how much of each token the mask covers; the mass of an `absent` (M,) query belongs
    into the slot "nowhere". A query with neither mask nor absence does not count.
    """
    logits = torch.cat([pointed.logits, pointed.nowhere[:, None]], 1).to(inside.dtype)  # (M, n + 1)
    wanted = torch.cat([inside, absent[:, None].to(inside.dtype)], 1)
    counted = wanted.amax(1) > 0
    inner = (logits[counted] + wanted[counted].log()).logsumexp(1)  # of the mass that is wanted
    loss = logits[counted].logsumexp(1) - inner
    return loss.sum() / max(len(logits) if queries is None else queries, 1)


def presence_loss(logits: Tensor, present: Tensor, absent: Tensor, queries: float | None = None) -> Tensor:
    """The mean over queries of the cross-entropy of presence.

    A query that is neither `present` (M,) nor `absent` (M,) does not count.
    """
    known = present | absent
    loss = fn.binary_cross_entropy_with_logits(
        logits[known], present[known].to(logits.dtype), reduction="sum"
    )
    return loss / max(len(logits) if queries is None else queries, 1)
