"""The parts of MCN (Luo et al., CVPR 2020): expression encoder, GARAN, ASPP."""

import math

import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

_SLOPE = 0.1  # of every leaky ReLU


class CBL(nn.Sequential):
    """Convolution without bias, batch norm, leaky ReLU."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 1, dilation: int = 1) -> None:
        conv = nn.Conv2d(c_in, c_out, kernel, padding=dilation * (kernel // 2), dilation=dilation, bias=False)
        super().__init__(conv, nn.BatchNorm2d(c_out), nn.LeakyReLU(_SLOPE))


class ExpressionEncoder(nn.Module):
    """Words of a phrase -> f_q: a GRU in both directions, summed, then attention channel by channel."""

    def __init__(self, c_words: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(c_words, channels, batch_first=True, bidirectional=True)
        self.attention = nn.Linear(channels, channels)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.dropout(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        forth, back = pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0].chunk(2, -1)
        h = forth + back  # (B, T, C)
        scores = self.dropout(torch.tanh(self.attention(h)))
        padding = torch.arange(h.shape[1], device=h.device) >= lengths[:, None]  # (B, T)
        weights = scores.masked_fill(padding[..., None], -torch.inf).softmax(1)  # over words, per channel
        return (weights * h).sum(1)  # f_q, (B, C)


class GARAN(nn.Module):
    """Collect what the expression asks for from all places, and diffuse it to the places that it fits.

    Channels are cut into two halves, which share all weights.
    """

    def __init__(self, channels: int, language: int) -> None:
        super().__init__()
        self.channels = channels
        self.query = nn.Linear(language // 2, channels // 2)
        self.collect_key = nn.Linear(channels // 2, channels // 2)
        self.value = nn.Linear(channels // 2, channels // 2)
        self.diffuse_key = nn.Linear(channels // 2, channels // 2)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, F: Tensor, f_q: Tensor) -> tuple[Tensor, Tensor]:
        """F (B, C, h, w) and f_q -> the attended F, and what attention added to it, F_att."""
        batch, _, height, width = F.shape
        half = F.flatten(2).transpose(1, 2).unflatten(2, (2, -1)).transpose(1, 2)  # (B, 2, h w, C/2)
        q = self.query(f_q.unflatten(1, (2, -1)))[..., None]  # (B, 2, C/2, 1)
        scale = math.sqrt(self.channels)
        a = (self.collect_key(half) @ q / scale).softmax(2)  # collect, (B, 2, h w, 1)
        g = (a * self.value(half)).sum(2, keepdim=True)  # (B, 2, 1, C/2)
        e = (self.diffuse_key(half) @ q / scale).sigmoid()  # diffuse, (B, 2, h w, 1)
        F_att = (e * g).transpose(2, 3).reshape(batch, -1, height, width)  # (B, C, h, w)
        return fn.leaky_relu(self.norm(F + F_att), _SLOPE), F_att


class ASPP(nn.Module):
    """Dilated convolutions and the global mean, side by side -> one logit per place."""

    def __init__(self, c_in: int, channels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [CBL(c_in, channels), *(CBL(c_in, channels, 3, d) for d in (6, 12, 18))]
        )
        self.mean = CBL(c_in, channels)
        self.out = nn.Conv2d(5 * channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        return self.out(torch.cat([*(branch(x) for branch in self.branches), mean], 1))[:, 0]  # (B, h, w)
