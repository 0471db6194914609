"""Sequences of unequal lengths one after another, so that no layer computes padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where the rows of B sequences are, packed (N, C) and padded (B, n, C)."""

    rows: Tensor  # the row of each place of the padded batch, 0 beyond an end, (B n,)
    places: Tensor  # the place of each row in the padded batch, (N,)
    valid: Tensor  # which places hold a row, (B, n)

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Packing":
        """Of sequences that have so many rows, at least one each."""
        counts = torch.tensor(lengths, device=device)
        valid = torch.arange(max(lengths), device=device) < counts[:, None]
        flat = valid.flatten()
        return cls((flat.cumsum(0) - 1) * flat, flat.nonzero()[:, 0], valid)

    def pad(self, x: Tensor) -> Tensor:
        """(N, C) -> (B, n, C); what is beyond an end must be masked as key, and `pack` drops it."""
        return x.index_select(0, self.rows).view(*self.valid.shape, -1)

    def pack(self, x: Tensor) -> Tensor:
        """(B, n, C) -> (N, C)."""
        return x.flatten(0, 1).index_select(0, self.places)
