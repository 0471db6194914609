"""Which tokens of a training image show what a noun names, for train_presence.py."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as fn
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ppmn.data.panoptic import PanopticImage
from ppmn.evaluation.selection import read_segment_ids
from ppmn.types import Size

STEPS = 4  # per side of a token, at which its segment is read
_FEWEST = 50  # tokens by which the loss is divided where fewer show something


def covered_tokens(
    image: PanopticImage, size: Size, unknown: Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The categories of an image, and how many steps of each token they cover: (k,) and (k + 1, n).

    The last row counts the steps whose ids are `unknown`.
    """
    height, width = size
    ids = Image.fromarray(read_segment_ids(image).astype(np.int32))
    read = np.asarray(ids.resize((STEPS * width, STEPS * height), Image.Resampling.NEAREST))
    cells = read.reshape(height, STEPS, width, STEPS)
    categories = sorted({s.category_id for s in image.segments})
    members = [[s.id for s in image.segments if s.category_id == id] for id in categories]
    rows = [np.isin(cells, ids).sum((1, 3)).ravel() for ids in (*members, list(unknown))]
    return np.array(categories, np.int32), np.array(rows, np.uint8)


def token_loss(
    logits: Tensor, meant: Sequence[frozenset[int]], covered: Mapping[int, Tensor], counted: Tensor
) -> Tensor:
    """Cross-entropy of token logits (m, n), over the tokens `counted` (n,), per token that shows something.

    Args:
        logits: Of whether a token shows what a noun names.
        meant: The categories that each noun names.
        covered: How much of each token a category covers, (n,) each, from 0 to 1.
        counted: 1 where it is known what a token shows, else 0.
    """
    nothing = torch.zeros_like(counted)
    shown = [torch.stack([covered.get(id, nothing) for id in ids]).sum(0).clamp(max=1) for ids in meant]
    target = torch.stack(shown)  # (m, n)
    losses = fn.binary_cross_entropy_with_logits(logits, target, counted.expand_as(target), reduction="sum")
    return losses / (target.sum() + _FEWEST)
