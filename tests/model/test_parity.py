"""The variant "released" against the authors' code, for every fixture folder under PPMN_FIXTURES."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.parity import (
    FIXTURE_FOLDERS,
    FIXTURES,
    Fixture,
    assert_close,
    check_gradient_norms,
    check_losses,
    match_selection,
    upsampled,
)
from torch import Tensor

from ppmn.model.lcpa import blur
from ppmn.model.losses import ppm_losses, total_loss


@pytest.fixture(scope="module", params=FIXTURE_FOLDERS or [None], ids=lambda f: f.name if f else "none")
def fixture(request: pytest.FixtureRequest) -> Iterator[Fixture]:
    if request.param is None:
        pytest.skip(f"no fixture folder under {FIXTURES.name}")
    case = Fixture(request.param)
    match_selection(case)
    yield case


def test_logits(fixture: Fixture) -> None:
    for grad in (False, True):  # the two implementations of an upsampled convolution
        with torch.set_grad_enabled(grad):
            maps = fixture.run(fixture.head())
        assert len(maps.H) == fixture.L + 1
        for index, H in enumerate(maps.H):
            assert_close(H.detach(), fixture.rows(f"logits8.{index}"))
            if f"logits4.{index}" in fixture.outputs:
                assert_close(upsampled(H.detach()), fixture.rows(f"logits4.{index}"))
            strided = f"logits4_rows_0_7_stride5.{index}"
            if strided in fixture.outputs:
                kept = fixture.outputs[strided].shape[1]
                assert_close(fixture.first(upsampled(H.detach()), kept)[:, ::5, ::5], fixture.rows(strided))


def test_selection(fixture: Fixture) -> None:
    with torch.no_grad():
        maps = fixture.run(fixture.head())
    for index in range(fixture.L):
        blurred = blur(maps.H[index]).flatten(1)
        if f"gather8.{index}" in fixture.outputs:
            kept = fixture.outputs[f"gather8.{index}"].shape[1]
            assert_close(fixture.first(blurred, kept), fixture.rows(f"gather8.{index}").flatten(1))
        assert_close(blurred.topk(fixture.K).values, fixture.rows(f"topk_vals.{index}"))


def compare(fixture: Fixture, name: str, ours: Tensor, axis: int) -> None:
    """Compare a tensor with the stored one, if there is one; some have only their first channels."""
    for key, theirs in fixture.outputs.items():
        if key == name or key.startswith(f"{name}.ch0_"):
            cut = ours.narrow(axis, 0, theirs.shape[1] if axis == 1 else theirs.shape[-1])
            if axis == 1:
                assert_close(cut, theirs)
            else:
                assert_close(cut, theirs.reshape(*fixture.valid.shape, -1)[fixture.valid])


def test_intermediate_tensors(fixture: Fixture) -> None:
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
        compare(fixture, name, ours, axis=1 if ours.ndim == 4 else -1)


def test_losses(fixture: Fixture) -> None:
    head = fixture.head()
    losses = ppm_losses(fixture.run(head).H, fixture.target(), head.config)
    expected = [(theirs["bce"], theirs["dice"]) for theirs in fixture.meta["loss_rounds"]]
    check_losses(losses, expected, fixture.meta["loss_total"])


def test_gradients(fixture: Fixture) -> None:
    head, pyramid, phrases = fixture.head(), fixture.pyramid(), fixture.phrases().requires_grad_()
    for level in pyramid.levels:
        level.requires_grad_()
    maps = head.ground(head.encode(pyramid), phrases, fixture.counts, fixture.given)
    total_loss(ppm_losses(maps.H, fixture.target(), head.config)).backward()
    grads = check_gradient_norms(head, fixture.meta["grad_norms"])
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
        loss = total_loss(ppm_losses(maps.H, target, head.config))
        within = {"abs": 1e-5} if step == 0 else {"rel": 2e-3}
        assert loss.item() == pytest.approx(theirs, **within)
        adam.zero_grad()
        loss.backward()
        adam.step()


def test_phrase_masks(fixture: Fixture) -> None:
    with torch.no_grad():
        last = fixture.run(fixture.head()).H[-1]
    probability = upsampled(last).sigmoid()  # (M, h4, w4)
    for b, rows in enumerate(probability.split(fixture.counts)):
        inter = fixture.inputs[f"inter_{b}"].tolist()
        ours = torch.stack([rows[i:j].mean(0) for i, j in pairwise(inter)])
        near = (ours - 0.5).abs() < 1e-4
        theirs = fixture.eval["phrase_mask"][b, : len(ours)].bool()
        assert bool((((ours > 0.5) == theirs) | near).all())
        tolerance = 1e-4 if fixture.eval["phrase_prob"].dtype == torch.float32 else 1e-3
        assert_close(ours, fixture.eval["phrase_prob"][b, : len(ours)], tolerance)
