"""The released wiring against the authors' own numbers: every fixture folder under PPMN_FIXTURES."""

import json
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as fn
from conftest import SHARED
from safetensors.torch import load_file
from torch import Tensor

from ppmn.config import ModelConfig
from ppmn.convert.key_maps import ROUND, released_head, released_head_names
from ppmn.model.lcpa import blur
from ppmn.model.losses import ppm_losses, total
from ppmn.model.network import Head, Maps
from ppmn.model.pyramid import Pyramid

FIXTURES = Path(os.environ.get("PPMN_FIXTURES", SHARED / "reference"))
FOLDERS = sorted(f.parent for f in FIXTURES.glob("**/head_state_used.fp16.safetensors"))


class Fixture:
    """One folder of inputs, weights and outputs; rows that are padding are left out throughout."""

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
        head = Head(256, 768, ModelConfig(rounds=self.L, pixels=self.K))
        head.load_state_dict(released_head(self.state, self.L))
        return head

    def pyramid(self) -> Pyramid:
        p2, p3, p4, p5 = (self.inputs[f"p{level}"].float() for level in range(2, 6))
        return Pyramid((p2, p3, p4, p5))

    def phrases(self) -> Tensor:
        return self.inputs["lang_feat_valid"].float()[self.valid]  # (M, 768)

    def run(self, head: Head) -> Maps:
        return head.ground(head.encode(self.pyramid()), self.phrases(), self.counts, self.given)

    def rows(self, name: str) -> Tensor:
        """A stored [B, N, ...] tensor on valid rows; some sets keep only the first rows of each photo."""
        stored = self.outputs[name]
        return stored[self.valid[:, : stored.shape[1]]]

    def first(self, ours: Tensor, kept: int) -> Tensor:
        """Our rows (M, ...) cut to those within the first `kept` rows of each photo."""
        inside = torch.arange(self.valid.shape[1]).expand_as(self.valid)[self.valid] < kept
        return ours[inside]

    def target(self) -> Tensor:
        return self.outputs["gts"][self.valid].float()


@pytest.fixture(scope="module", params=FOLDERS or [None], ids=lambda f: f.name if f else "none")
def fixture(request: pytest.FixtureRequest) -> Iterator[Fixture]:
    if request.param is None:
        pytest.skip(f"no fixture folder under {FIXTURES.name}")
    case = Fixture(request.param)
    settle_ties(case)
    yield case


def settle_ties(case: Fixture) -> None:
    """Compare top-k sets round by round; where a near-tie falls the other way, go on with the given ones."""
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


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-4) -> None:
    assert ours.shape == theirs.shape
    error = (ours - theirs.float()).abs().max().item() if ours.numel() else 0.0
    assert error <= tolerance, f"largest difference {error:.2e}"


def double(H: Tensor) -> Tensor:
    return fn.interpolate(H[None], scale_factor=2.0, mode="bilinear", align_corners=False)[0]


def test_logits(fixture: Fixture) -> None:
    for grad in (False, True):  # the two ways a doubled convolution is computed
        with torch.set_grad_enabled(grad):
            maps = fixture.run(fixture.head())
        assert len(maps.H) == fixture.L + 1
        for index, H in enumerate(maps.H):
            close(H.detach(), fixture.rows(f"logits8.{index}"))
            if f"logits4.{index}" in fixture.outputs:
                close(double(H.detach()), fixture.rows(f"logits4.{index}"))
            strided = f"logits4_rows_0_7_stride5.{index}"
            if strided in fixture.outputs:
                kept = fixture.outputs[strided].shape[1]
                close(fixture.first(double(H.detach()), kept)[:, ::5, ::5], fixture.rows(strided))


def test_selection(fixture: Fixture) -> None:
    with torch.no_grad():
        maps = fixture.run(fixture.head())
    for index in range(fixture.L):
        blurred = blur(maps.H[index]).flatten(1)
        if f"gather8.{index}" in fixture.outputs:
            kept = fixture.outputs[f"gather8.{index}"].shape[1]
            close(fixture.first(blurred, kept), fixture.rows(f"gather8.{index}").flatten(1))
        close(blurred.topk(fixture.K).values, fixture.rows(f"topk_vals.{index}"))


def stored(fixture: Fixture, name: str, ours: Tensor, axis: int) -> None:
    """Compare where the tensor is there, whole or its first channels."""
    for key, theirs in fixture.outputs.items():
        if key == name or key.startswith(f"{name}.ch0_"):
            cut = ours.narrow(axis, 0, theirs.shape[1] if axis == 1 else theirs.shape[-1])
            if axis == 1:
                close(cut, theirs)
            else:
                close(cut, theirs.reshape(*fixture.valid.shape, -1)[fixture.valid])


def test_every_inner_tensor(fixture: Fixture) -> None:
    head = fixture.head()
    seen: dict[str, Tensor] = {}

    def keep(name: str, before: bool = False) -> Callable[..., None]:
        def hook(_: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            seen[name] = (inputs[0] if before else output).detach().clone()

        return hook

    for level in range(4):
        head.neck.levels[level][-1].register_forward_hook(keep(f"neck.level{level}"))
    head.neck.register_forward_hook(keep("neck.out"))
    head.project_pixels[0].register_forward_hook(keep("x_feats"))
    head.project_phrases.register_forward_hook(keep("kernels0"))
    for s, refine in enumerate(head.rounds):
        head.project_pixels[s + 1].register_forward_hook(keep(f"r{s}.x"))
        refine.norm1.register_forward_hook(keep(f"r{s}.attn_out", before=True))
        refine.norm1.register_forward_hook(keep(f"r{s}.topk_norm"))
        refine.norm2.register_forward_hook(keep(f"r{s}.ffn_pre", before=True))
        refine.norm2.register_forward_hook(keep(f"r{s}.obj_feat"))
        refine.mlp.register_forward_hook(keep(f"r{s}.mask_feat"))
    with torch.no_grad():
        fixture.run(head)
    for name, ours in seen.items():
        stored(fixture, name, ours, axis=1 if ours.ndim == 4 else -1)


def test_losses(fixture: Fixture) -> None:
    head = fixture.head()
    losses = ppm_losses(fixture.run(head).H, fixture.target(), head.config)
    for ours, theirs in zip(losses, fixture.meta["loss_rounds"], strict=True):
        assert ours.bce.item() == pytest.approx(theirs["bce"], abs=1e-5)
        assert ours.dice.item() == pytest.approx(theirs["dice"], abs=1e-5)
    assert total(losses).item() == pytest.approx(fixture.meta["loss_total"], abs=1e-5)


def released_gradients(head: Head, L: int) -> dict[str, Tensor]:
    """Our gradients under the released names; the query, key and value projections stand in one there."""
    ours = dict(head.named_parameters())
    grads = {theirs: ours[name].grad for name, theirs in released_head_names(L).items()}
    for s in range(L):
        mca = head.rounds[s].aggregate
        key = torch.zeros_like(mca.query.bias)  # it cancels
        stem = f"{ROUND}{s}.topk_attn.attn.in_proj_"
        grads[f"{stem}weight"] = torch.cat(
            [mca.query.weight.grad, mca.key.weight.grad, mca.value.weight.grad]
        )
        grads[f"{stem}bias"] = torch.cat([mca.query.bias.grad, key, mca.value.bias.grad])
    return grads


def test_gradients(fixture: Fixture) -> None:
    head, pyramid, phrases = fixture.head(), fixture.pyramid(), fixture.phrases().requires_grad_()
    for level in pyramid.levels:
        level.requires_grad_()
    maps = head.ground(head.encode(pyramid), phrases, fixture.counts, fixture.given)
    total(ppm_losses(maps.H, fixture.target(), head.config)).backward()
    grads = released_gradients(head, fixture.L)
    assert set(grads) == set(fixture.meta["grad_norms"])
    for name, norm in fixture.meta["grad_norms"].items():
        assert grads[name].norm().item() == pytest.approx(norm, rel=1e-4), name
    inputs = {f"p{i + 2}": level.grad for i, level in enumerate(pyramid.levels)} | {
        "lang_feat_valid": phrases.grad
    }
    for name, norm in fixture.meta["input_grad_norms"].items():
        assert inputs[name].norm().item() == pytest.approx(norm, rel=1e-4), name
    for name, grad in fixture.grads.items():
        theirs = grad[fixture.valid] if name == "input.lang_feat_valid" else grad
        ours = inputs[name.removeprefix("input.")] if name.startswith("input.") else grads[name]
        error = (ours - theirs).norm() / theirs.norm()
        assert error < 1e-3, f"{name}: {error:.1e}"


def test_adam_steps(fixture: Fixture) -> None:
    head, target = fixture.head(), fixture.target()
    adam = torch.optim.Adam(head.parameters(), lr=1e-4)
    expected = fixture.meta["official_train_epoch_losses_adam_lr1e-4"]
    for step, theirs in enumerate(expected):
        maps = fixture.run(head) if step == 0 else head(fixture.pyramid(), fixture.phrases(), fixture.counts)
        loss = total(ppm_losses(maps.H, target, head.config))
        within = {"abs": 1e-5} if step == 0 else {"rel": 2e-3}
        assert loss.item() == pytest.approx(theirs, **within)
        adam.zero_grad()
        loss.backward()
        adam.step()


def test_phrase_masks(fixture: Fixture) -> None:
    with torch.no_grad():
        last = fixture.run(fixture.head()).H[-1]
    probability = double(last).sigmoid()  # (M, h4, w4)
    for b, rows in enumerate(probability.split(fixture.counts)):
        inter = fixture.inputs[f"inter_{b}"].tolist()
        ours = torch.stack([rows[i:j].mean(0) for i, j in pairwise(inter)])
        near = (ours - 0.5).abs() < 1e-4
        theirs = fixture.eval["phrase_mask"][b, : len(ours)].bool()
        assert bool((((ours > 0.5) == theirs) | near).all())
        tolerance = 1e-4 if fixture.eval["phrase_prob"].dtype == torch.float32 else 1e-3
        close(ours, fixture.eval["phrase_prob"][b, : len(ours)], tolerance)
