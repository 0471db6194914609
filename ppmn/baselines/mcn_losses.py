"""MCN's losses, its best box, and adaptive suppression of what lies outside of the box."""

from typing import Literal

import torch
import torch.nn.functional as fn
from torch import Tensor

from ppmn.baselines.mcn import MCNConfig, MCNOutput
from ppmn.errors import InputError

SEGMENTATION_WEIGHT = 270.0  # the published 0.1 x a sum over 2,704 places, whatever the size of the map
IGNORED_IOU = 0.5  # boxes that overlap the true one so much are no negatives
Suppression = Literal["none", "hard", "adaptive"]


def decode_boxes(raw: Tensor, config: MCNConfig) -> Tensor:
    """Predicted boxes: centre x, y, width, height in fractions of the image, (B, 3, 4, h, w)."""
    height, width = raw.shape[-2:]
    columns = torch.arange(width, device=raw.device, dtype=raw.dtype)
    rows = torch.arange(height, device=raw.device, dtype=raw.dtype)[:, None]
    anchors = raw.new_tensor(config.anchors)[..., None, None]  # (3, 2, 1, 1)
    x = (raw[:, :, 0].sigmoid() + columns) / width
    y = (raw[:, :, 1].sigmoid() + rows) / height
    sides = anchors * raw[:, :, 2:4].exp()  # (B, 3, 2, h, w)
    return torch.cat([torch.stack([x, y], 2), sides], 2)


def anchor_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU of boxes of centre, width and height that stand in dimension 2."""
    low = torch.maximum(a[:, :, :2] - a[:, :, 2:4] / 2, b[:, :, :2] - b[:, :, 2:4] / 2)
    high = torch.minimum(a[:, :, :2] + a[:, :, 2:4] / 2, b[:, :, :2] + b[:, :, 2:4] / 2)
    both = (high - low).clamp(min=0).prod(2)
    return both / (a[:, :, 2:4].prod(2) + b[:, :, 2:4].prod(2) - both).clamp(min=1e-9)


def responsible_anchor(true: Tensor, config: MCNConfig) -> Tensor:
    """The anchor whose shape is nearest to that of each true box, by IoU at one centre, (B,)."""
    anchors, sides = true.new_tensor(config.anchors), true[:, None, 2:]  # (3, 2), (B, 1, 2)
    both = torch.minimum(anchors, sides).prod(-1)  # (B, 3)
    return (both / (anchors.prod(-1) + sides.prod(-1) - both)).argmax(1)


def box_loss(raw: Tensor, true: Tensor, config: MCNConfig) -> Tensor:
    """YOLO's loss with one true box (B, 4) per phrase, at the one responsible anchor; a sum over B."""
    batch, _, _, height, width = raw.shape
    index, best = torch.arange(batch, device=raw.device), responsible_anchor(true, config)
    grid = torch.tensor([width, height], device=raw.device)
    place = true[:, :2] * grid
    cell = torch.minimum(place.long(), grid - 1)  # (B, 2)
    own = raw[index, best, :, cell[:, 1], cell[:, 0]]  # (B, 5)
    weight = (2 - true[:, 2] * true[:, 3])[:, None]
    centre = fn.binary_cross_entropy_with_logits(own[:, :2], place - cell, weight, reduction="sum")
    log_sides = torch.log(true[:, 2:] / true.new_tensor(config.anchors)[best])
    smooth = fn.smooth_l1_loss(own[:, 2:4], log_sides, beta=1 / 9, reduction="none")  # sigma 3
    positive = torch.zeros_like(raw[:, :, 4])
    positive[index, best, cell[:, 1], cell[:, 0]] = 1
    with torch.no_grad():
        overlap = anchor_iou(decode_boxes(raw, config), true[:, None, :, None, None])  # (B, 3, h, w)
    counted = positive + (1 - positive) * (overlap < IGNORED_IOU)
    objectness = fn.binary_cross_entropy_with_logits(raw[:, :, 4], positive, counted, reduction="sum")
    return centre + 0.5 * (weight * smooth).sum() + objectness


def mcn_loss(
    output: MCNOutput, masks: Tensor, boxes: Tensor, config: MCNConfig, valid: Tensor | None = None
) -> Tensor:
    """Segmentation, box and consistency, averaged over the batch.

    Args:
        output: Of the network.
        masks: True masks at p3, (B, 4h, 4w).
        boxes: True boxes, the union of a phrase's segments: centre x, y, width, height in fractions, (B, 4).
        config: Of the network.
        valid: Which pixels count, (B, 4h, 4w).
    """
    if boxes.shape != (len(masks), 4) or not ((boxes[:, 2:] > 0).all() and (boxes <= 1).all()):
        raise InputError("MCN needs one box of x, y, width, height in fractions of the image per phrase")
    weight = torch.ones_like(masks) if valid is None else valid.to(masks.dtype)
    bce = fn.binary_cross_entropy_with_logits(output.mask, masks, weight, reduction="none").sum((1, 2))
    loss = SEGMENTATION_WEIGHT * (bce / weight.sum((1, 2)).clamp(min=1)).mean()
    if output.boxes is not None:
        loss = loss + box_loss(output.boxes, boxes, config) / len(masks)
    if output.energy is not None:
        loss = loss - torch.log(output.energy + 1e-6).mean()
    return loss


def best_boxes(raw: Tensor, config: MCNConfig) -> tuple[Tensor, Tensor]:
    """The most confident box of each phrase (B, 4), and its confidence (B,)."""
    confidence, place = raw[:, :, 4].sigmoid().flatten(1).max(1)  # (B,)
    boxes = decode_boxes(raw, config).transpose(1, 2).flatten(2)  # (B, 4, 3 h w)
    return boxes[torch.arange(len(raw)), :, place], confidence


def suppress(
    responses: Tensor, boxes: Tensor, confidence: Tensor, *, kind: Suppression = "adaptive"
) -> Tensor:
    """ASNLS: responses (B, H, W) times 2 - p inside the box and p outside, p being its confidence.

    `hard` removes what is outside and keeps what is inside; `none` changes nothing.
    """
    if kind == "none":
        return responses
    height, width = responses.shape[-2:]
    x = (torch.arange(width, device=responses.device) + 0.5) / width
    y = (torch.arange(height, device=responses.device) + 0.5) / height
    across = (x - boxes[:, :1]).abs() <= boxes[:, 2:3] / 2  # (B, W)
    down = (y - boxes[:, 1:2]).abs() <= boxes[:, 3:] / 2  # (B, H)
    inside = down[:, :, None] & across[:, None]
    p = confidence[:, None, None] if kind == "adaptive" else torch.ones_like(confidence)[:, None, None]
    outside = p if kind == "adaptive" else torch.zeros_like(p)
    return responses * torch.where(inside, 2 - p, outside)
