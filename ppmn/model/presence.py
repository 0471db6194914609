"""Whether what a phrase names is in the image. It goes beyond the paper, see docs/deviations.md.

A phrase is taken as the text encoder gives it, before it has seen the image, and attends to the image
by itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ppmn.model.attention import Attention, Memory
from ppmn.model.pyramid import of_images


class PresenceLayer(nn.Module):
    """Attention to the tokens of an image and a feed-forward network, each after a norm, with a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.attend = Attention(channels, channels, channels)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, 2 * channels),
            nn.GELU(),
            nn.Linear(2 * channels, channels),
        )

    def forward(self, x: Tensor, memory: Memory, mask: Tensor | None) -> Tensor:
        """x (1, m, C), the phrases of an image."""
        x = x + self.attend(self.norm(x), memory, mask)
        return x + self.feed_forward(x)


class Presence(nn.Module):
    """A logit for each phrase, from layers in which it attends to the tokens of its image."""

    def __init__(self, channels_t: int, channels_r: int, channels: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Linear(channels_t + channels, channels)
        self.phrase = nn.Sequential(nn.LayerNorm(channels_r), nn.Linear(channels_r, channels))
        self.layers = nn.ModuleList(PresenceLayer(channels) for _ in range(layers))
        self.logit = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, 1))

    def memory(self, own: Tensor, tokens: Tensor) -> tuple[Memory, ...]:
        """Keys and values of each layer, from the encoder's own tokens (B, n, C_t) and those with context."""
        tokens = self.tokens(torch.cat([own, tokens], -1))  # (B, n, C)
        return tuple(layer.attend.memory(tokens) for layer in self.layers)  # type: ignore[union-attr, operator]

    def forward(
        self, phrases: Tensor, memory: Sequence[Memory], valid: Tensor | None, counts: Sequence[int]
    ) -> Tensor:
        """Logits (M,) of phrases (M, C_r): `counts[b]` of them belong to image b.

        Of the tokens those count that are `valid` (B, n).
        """
        kept = [tuple(of_images(x) for x in pair) for pair in memory]
        logits = []
        for image, rows in enumerate(self.phrase(phrases).split(list(counts))):
            mask = None if valid is None else valid[image, None, None, None]  # (1, 1, 1, n)
            x = rows[None]  # (1, m, C)
            for layer, (keys, values) in zip(self.layers, kept, strict=True):
                x = layer(x, (keys[image][None], values[image][None]), mask)
            logits.append(self.logit(x[0])[:, 0])
        return torch.cat(logits)
