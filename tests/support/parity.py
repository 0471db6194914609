"""Reference outputs of the authors' released head, and how ours is compared with them."""

import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from conftest import SHARED
from safetensors.torch import load_file
from torch import Tensor

from ppmn.config import ModelConfig
from ppmn.convert.key_maps import ROUND_PREFIX, released_head, released_head_names
from ppmn.model.losses import RoundLoss, total_loss
from ppmn.model.network import Head, Maps
from ppmn.model.pyramid import Pyramid

FIXTURES = Path(os.environ.get("PPMN_FIXTURES", SHARED / "reference"))
FIXTURE_FOLDERS = sorted(f.parent for f in FIXTURES.glob("**/head_state_used.fp16.safetensors"))
SEEDED = Path(__file__).resolve().parents[1] / "fixtures" / "seeded"


def load_head(state: dict[str, Tensor], rounds: int, pixels: int) -> Head:
    """Our head with the weights of a released state dict."""
    head = Head(256, 768, ModelConfig(rounds=rounds, pixels=pixels))
    head.load_state_dict(released_head(state, rounds))
    return head


def seeded_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Normally distributed numbers with a seed that is made from a name."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32))


class SeededFixture:
    """The stored outputs of tests/fixtures/seeded, and the weights and inputs that its README defines."""

    def __init__(self) -> None:
        self.meta: dict[str, Any] = json.loads((SEEDED / "meta.json").read_text())
        self.rounds, self.pixels, self.valid = (self.meta[name] for name in ("rounds", "points", "valid"))
        with np.load(SEEDED / "outputs.npz") as stored:
            self.maps = [torch.from_numpy(stored[f"logits4.{n}"]) for n in range(self.rounds + 1)]
        self.state = {name: self.weight(name, tuple(shape)) for name, shape in self.meta["keys"].items()}
        self.phrases = seeded_tensor("phrases", (self.valid, 768))
        height, width = self.meta["height"], self.meta["width"]
        self.target = (seeded_tensor("masks", (self.valid, height // 4, width // 4)) > 0.5).float()
        p2, p3, p4, p5 = (
            seeded_tensor(f"p{n}", (1, 256, height // 2**n, width // 2**n)) for n in range(2, 6)
        )
        self.pyramid = Pyramid((p2, p3, p4, p5))

    @staticmethod
    def weight(name: str, shape: tuple[int, ...]) -> Tensor:
        """A weight matrix of unit scale, a norm's scale near 1, or a bias near 0."""
        x = seeded_tensor(name, shape)
        if x.ndim > 1:
            return x / math.sqrt(math.prod(shape[1:]))
        return 1 + 0.1 * x if name.endswith("weight") else 0.1 * x

    def head(self) -> Head:
        return load_head(self.state, self.rounds, self.pixels)

    def run(self, head: Head) -> Maps:
        return head(self.pyramid, self.phrases, [self.valid])

    def check_maps(self, head: Head) -> None:
        """Compare the maps of all rounds with the stored ones, which are every second row and column."""
        for ours, theirs in zip(self.run(head).H, self.maps, strict=True):
            assert_close(upsampled(ours.detach())[:, ::2, ::2], theirs)


class Fixture:
    """One folder of inputs, weights and outputs, without the rows that are padding."""

    def __init__(self, folder: Path) -> None:
        self.meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
        self.inputs = load_file(folder / "inputs.safetensors")
        self.outputs = load_file(folder / "outputs.safetensors")
        self.grads = load_file(folder / "grads.safetensors")
        self.eval = load_file(folder / "eval.safetensors")
        self.state = {k: v.float() for k, v in load_file(folder / "head_state_used.fp16.safetensors").items()}
        self.L, self.K = self.meta["L"], self.meta["K"]
        self.valid = self.inputs["valid_rows"]  # (B, N)
        self.counts = self.valid.sum(1).tolist()
        self.given: list[Tensor | None] = [None] * self.L

    def head(self) -> Head:
        return load_head(self.state, self.L, self.K)

    def pyramid(self) -> Pyramid:
        p2, p3, p4, p5 = (self.inputs[f"p{level}"].float() for level in range(2, 6))
        return Pyramid((p2, p3, p4, p5))

    def phrases(self) -> Tensor:
        return self.inputs["lang_feat_valid"].float()[self.valid]  # (M, 768)

    def run(self, head: Head) -> Maps:
        return head.ground(head.encode(self.pyramid()), self.phrases(), self.counts, self.given)

    def rows(self, name: str) -> Tensor:
        """A stored [B, N, ...] tensor on valid rows; some sets keep only the first rows of each image."""
        stored = self.outputs[name]
        return stored[self.valid[:, : stored.shape[1]]]

    def first(self, ours: Tensor, kept: int) -> Tensor:
        """Our rows (M, ...) cut to those within the first `kept` rows of each image."""
        inside = torch.arange(self.valid.shape[1]).expand_as(self.valid)[self.valid] < kept
        return ours[inside]

    def target(self) -> Tensor:
        return self.outputs["gts"][self.valid].float()


def match_selection(case: Fixture) -> None:
    """Compare top-k sets round by round; where a near-tie is decided differently, use the stored ones."""
    head = case.head()
    for index in range(case.L):
        with torch.no_grad():
            ours = case.run(head).indices[index]
        theirs = case.rows(f"topk_inds.{index}").long()
        gaps = case.rows(f"topk_boundary_gap_over_std.{index}")
        for mine, their, gap in zip(ours, theirs, gaps, strict=True):
            odd = set(mine.tolist()) ^ set(their.tolist())
            assert len(odd) <= (0 if gap >= 1e-4 else 2), (
                f"round {index}: {len(odd)} pixels differ at a gap of {gap}"
            )
            if odd:
                case.given[index] = theirs


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-4) -> None:
    """Equal shapes, and no difference above `tolerance`."""
    assert ours.shape == theirs.shape
    error = (ours - theirs.float()).abs().max().item() if ours.numel() else 0.0
    assert error <= tolerance, f"largest difference {error:.2e}"


def upsampled(H: Tensor) -> Tensor:
    """Maps (M, H, W) at twice their size, as the released code supervises them."""
    return fn.interpolate(H[None], scale_factor=2.0, mode="bilinear", align_corners=False)[0]


def check_losses(losses: Sequence[RoundLoss], expected: Sequence[tuple[float, float]], total: float) -> None:
    """Compare BCE and Dice of every round, and their sum."""
    for ours, (bce, dice) in zip(losses, expected, strict=True):
        assert ours.bce.item() == pytest.approx(bce, abs=1e-5)
        assert ours.dice.item() == pytest.approx(dice, abs=1e-5)
    assert total_loss(losses).item() == pytest.approx(total, abs=1e-5)


def check_gradient_norms(head: Head, expected: Mapping[str, float]) -> dict[str, Tensor]:
    """Compare the norms of all gradients; returns the gradients under the released names."""
    gradients = released_gradients(head, len(head.rounds))
    assert set(gradients) == set(expected)
    for name, norm in expected.items():
        assert gradients[name].norm().item() == pytest.approx(norm, rel=1e-4), name
    return gradients


def released_gradients(head: Head, L: int) -> dict[str, Tensor]:
    """Our gradients under the released names, where query, key and value projections are one tensor."""
    ours = dict(head.named_parameters())
    grads = {theirs: ours[name].grad for name, theirs in released_head_names(L).items()}
    for s in range(L):
        mca = head.rounds[s].aggregate
        key = torch.zeros_like(mca.query.bias)  # it cancels
        stem = f"{ROUND_PREFIX}{s}.topk_attn.attn.in_proj_"
        grads[f"{stem}weight"] = torch.cat(
            [mca.query.weight.grad, mca.key.weight.grad, mca.value.weight.grad]
        )
        grads[f"{stem}bias"] = torch.cat([mca.query.bias.grad, key, mca.value.bias.grad])
    return grads
