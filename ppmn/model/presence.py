"""Whether what a phrase names is in the image. It goes beyond the paper, see docs/deviations.md.

A phrase is taken as the text encoder gives it, before it has seen the image. Each token of the image gets a
logit for each phrase: whether it shows what the phrase names. Masks supervise it. The phrase also attends to
the image by itself.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ppmn.model.attention import Attention, Memory
from ppmn.model.pyramid import of_images

_LOGIT_SCALE = 4.0  # of token logits, so that they can be large from the start
_TOKEN_BIAS = -4.0  # at the start of training: few tokens show what a phrase names


class PresenceLayer(nn.Module):
    """Attention to the tokens of an image and a feed-forward network, each after a norm, with a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.attend = Attention(channels, channels, channels)
        self.feed_forward = nn.Sequential(nn.LayerNorm(channels), *_two_layers(channels, channels))

    def forward(self, x: Tensor, memory: Memory, mask: Tensor | None) -> Tensor:
        """x (1, m, C), the phrases of an image."""
        x = x + self.attend(self.norm(x), memory, mask)
        return x + self.feed_forward(x)


class Presence(nn.Module):
    """A logit for each phrase, from the logits of the tokens and from layers that attend to them."""

    def __init__(self, channels_t: int, channels_r: int, channels: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Sequential(*_two_layers(channels_t + channels, channels), nn.LayerNorm(channels))
        self.phrase = nn.Sequential(nn.LayerNorm(channels_r), *_two_layers(channels_r, channels))
        self.query, self.out = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.key_value = nn.Linear(channels, 2 * channels)
        self.token_bias = nn.Parameter(torch.tensor(_TOKEN_BIAS))
        self.layers = nn.ModuleList(PresenceLayer(channels) for _ in range(layers))
        self.logit = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, 1))
        self.pool = nn.Linear(2, 1)

    def memory(self, own: Tensor, tokens: Tensor) -> tuple[Memory, ...]:
        """Keys and values of the token logits, with one head, and of each layer.

        They are made from the encoder's own tokens (B, n, C_t) and those with context.
        """
        tokens = self.tokens(torch.cat([own, tokens], -1))  # (B, n, C)
        keys, values = self.key_value(tokens)[:, None].chunk(2, -1)  # (B, 1, n, C)
        layers = (layer.attend.memory(tokens) for layer in self.layers)  # type: ignore[union-attr, operator]
        return ((keys, values), *layers)

    def forward(
        self, phrases: Tensor, memory: Sequence[Memory], valid: Tensor | None, counts: Sequence[int]
    ) -> Tensor:
        """Logits (M,) of phrases (M, C_r): `counts[b]` of them belong to image b.

        Of the tokens those count that are `valid` (B, n).
        """
        kept = [tuple(of_images(x) for x in pair) for pair in memory]
        logits = []
        for image, rows in enumerate(phrases.split(list(counts))):
            own = [(keys[image][None], values[image][None]) for keys, values in kept]
            logits.append(self.decide(rows, own, None if valid is None else valid[image])[0])
        return torch.cat(logits)

    def decide(
        self, phrases: Tensor, memory: Sequence[Memory], valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Logits (m,) of the phrases (m, C_r) of one image, and those of its tokens, (m, n)."""
        (keys, values), *memories = memory
        R = self.phrase(phrases)  # (m, C)
        scale = _LOGIT_SCALE / math.sqrt(R.shape[1])
        token_logits = scale * self.query(R) @ keys[0, 0].T + self.token_bias  # (m, n)
        number, mask = torch.full((), keys.shape[2], device=R.device, dtype=R.dtype), None
        if valid is not None:
            token_logits, mask = token_logits.masked_fill(~valid, -math.inf), valid[None, None, None]
            number = valid.sum()
        x = (R + self.out(token_logits.softmax(1) @ values[0, 0]))[None]  # (1, m, C)
        for layer, kept in zip(self.layers, memories, strict=True):
            x = layer(x, kept, mask)
        peak, mean = token_logits.amax(1), token_logits.logsumexp(1) - number.log()
        pooled = self.pool(torch.stack([peak, mean], 1))  # (m, 1)
        return (self.logit(x[0]) + pooled)[:, 0], token_logits


def _two_layers(channels_in: int, channels: int) -> tuple[nn.Module, ...]:
    """A hidden layer twice as wide as the output."""
    return nn.Linear(channels_in, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
