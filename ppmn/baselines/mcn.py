"""MCN, small: one phrase, one mask and one box, on the pyramid of PPMN's image encoder.

Widths are an eighth to a quarter of the published ones; the rest follows the paper's code. All images of a
batch have one size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.baselines.mcn_parts import ASPP, CBL, GARAN, ExpressionEncoder
from ppmn.errors import InputError

Anchor = tuple[float, float]  # width, height in fractions of the image


@dataclass(frozen=True)
class MCNConfig:
    """Sizes of the small MCN and what can be left out of it."""

    visual: int = 128  # C, channels of the pyramid and of both branches
    language: int = 256  # channels of f_q
    words: int = 384  # channels of the text encoder
    dropout: float = 0.1
    anchors: tuple[Anchor, Anchor, Anchor] = ((0.33, 0.62), (0.6, 0.65), (0.93, 0.65))  # published, of 416
    box_branch: bool = True  # False: segmentation alone
    consistency: bool = True  # the consistency energy, CEM; needs the box branch

    def __post_init__(self) -> None:
        for name in ("visual", "language"):
            if getattr(self, name) < 2 or getattr(self, name) % 2:
                raise InputError(f"{name} is {getattr(self, name)}; GARAN cuts channels into two halves")
        if not all(0 < side <= 1 for anchor in self.anchors for side in anchor):
            raise InputError(f"anchors are {self.anchors}; they must be fractions of the image")


@dataclass(frozen=True)
class MCNOutput:
    """What the network predicts for each phrase; without the box branch only the mask."""

    mask: Tensor  # logits at p3, (B, 4h, 4w)
    boxes: Tensor | None = None  # x, y, w, h, confidence of each anchor at p5, (B, 3, 5, h, w)
    energy: Tensor | None = None  # consistency of the two branches, (B,)

    def float(self) -> "MCNOutput":
        """In single precision."""
        boxes, energy = (None if t is None else t.float() for t in (self.boxes, self.energy))
        return MCNOutput(self.mask.float(), boxes, energy)


class Fusion(nn.Module):
    """F1, after a residual block, times the expression at every place."""

    def __init__(self, config: MCNConfig) -> None:
        super().__init__()
        C = config.visual
        self.residual = nn.Sequential(CBL(C, C // 2), CBL(C // 2, C, 3))
        self.expression = nn.Sequential(nn.Linear(config.language, C), nn.BatchNorm1d(C), nn.LeakyReLU(0.1))
        self.norm = nn.BatchNorm2d(C)

    def forward(self, F1: Tensor, f_q: Tensor) -> Tensor:
        product = (F1 + self.residual(F1)) * self.expression(f_q)[..., None, None]
        return fn.leaky_relu(self.norm(product), 0.1)  # Fm, (B, C, h, w)


class ConsistencyEnergy(nn.Module):
    """CEM: how well the places that the two branches attend to agree, s^T T c.

    Always in single precision at least: the loss is the logarithm of sums of small products.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.segmentation = nn.Conv2d(channels, 1, 1)
        self.comprehension = nn.Conv2d(channels, 1, 1)

    def forward(self, F_as: Tensor, F_ac: Tensor) -> Tensor:
        dtype = self.segmentation.weight.dtype
        with torch.autocast(F_as.device.type, enabled=False):
            return self._energy(F_as.to(dtype), F_ac.to(dtype))

    def _energy(self, F_as: Tensor, F_ac: Tensor) -> Tensor:
        s = self.segmentation(F_as).flatten(1).softmax(1)  # (B, 16 h w)
        c = self.comprehension(F_ac).flatten(1).softmax(1)  # (B, h w)
        rows, columns = fn.normalize(F_as.flatten(2), dim=1), fn.normalize(F_ac.flatten(2), dim=1)
        T = (torch.einsum("bci,bcj->bij", rows, columns) + 1) / 2  # (B, 16 h w, h w)
        return torch.einsum("bi,bij,bj->b", s, T.clamp(1e-6, 1 - 1e-6), c)


class MCN(nn.Module):
    """F1, F2, F3 at strides 4, 2 and 1 of p3, and the words of one phrase per image -> mask and box."""

    def __init__(self, config: MCNConfig) -> None:
        super().__init__()
        self.config = config
        C, half = config.visual, config.visual // 2
        self.expression = ExpressionEncoder(config.words, config.language, config.dropout)
        self.fusion = Fusion(config)
        self.lateral2, self.merge2 = CBL(C, C), CBL(2 * C, C)
        self.lateral3, self.merge3 = CBL(C, C), CBL(2 * C, C)
        self.seg_garan = GARAN(C, config.language)
        self.aspp = ASPP(C, half)
        if config.box_branch:
            self.down2, self.join2 = nn.Sequential(CBL(C, half), CBL(half, C, 3)), CBL(2 * C, C)
            self.down1, self.join1 = nn.Sequential(CBL(C, half), CBL(half, C, 3)), CBL(2 * C, C)
            self.det_garan = GARAN(C, config.language)
            self.box = nn.Conv2d(C, 5 * len(config.anchors), 1)
            if config.consistency:
                self.cem = ConsistencyEnergy(C)

    def forward(self, F1: Tensor, F2: Tensor, F3: Tensor, words: Tensor, lengths: Tensor) -> MCNOutput:
        """Predict one mask and one box per phrase.

        Args:
            F1: p5, (B, C, h, w).
            F2: p4, (B, C, 2h, 2w).
            F3: p3, (B, C, 4h, 4w).
            words: Vectors of the phrase's word pieces, (B, T, words).
            lengths: Word pieces of each phrase, (B,); what follows them is padding.
        """
        f_q = self.expression(words, lengths)  # (B, language)
        Fm = self.fusion(F1, f_q)  # (B, C, h, w)
        Fmid = self.merge2(torch.cat([_double(Fm), self.lateral2(F2)], 1))  # top-down, (B, C, 2h, 2w)
        top = self.merge3(torch.cat([_double(Fmid), self.lateral3(F3)], 1))  # (B, C, 4h, 4w)
        Fdown, F_as = self.seg_garan(top, f_q)
        mask = self.aspp(Fdown)  # (B, 4h, 4w)
        if not self.config.box_branch:
            return MCNOutput(mask)
        middle = self.join2(torch.cat([self.down2(fn.avg_pool2d(Fdown, 2)), Fmid], 1))  # bottom-up
        bottom = self.join1(torch.cat([self.down1(fn.avg_pool2d(middle, 2)), Fm], 1))  # (B, C, h, w)
        attended, F_ac = self.det_garan(bottom, f_q)
        boxes = self.box(attended).unflatten(1, (-1, 5))  # (B, 3, 5, h, w)
        return MCNOutput(mask, boxes, self.cem(F_as, F_ac) if self.config.consistency else None)


def _double(x: Tensor) -> Tensor:
    return fn.interpolate(x, scale_factor=2, mode="nearest")
