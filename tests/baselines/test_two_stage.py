"""The two-stage baseline: names and shapes of the checkpoint, padding, the switches, the rules."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.stage_one import CAPTION, SPANS, released_shapes, small_two_stage, some_proposals

from ppmn.baselines.region_batch import PHRASE_SLOTS, TEST_REGIONS, caption_rows, collate
from ppmn.baselines.region_choice import TwoStageGrounder, choose_regions, region_targets
from ppmn.baselines.two_stage import RELEASED_PREFIX, TwoStage, TwoStageConfig, matching_loss, phrase_scores
from ppmn.errors import InputError


def test_names_and_shapes_are_the_released_ones() -> None:
    with torch.device("meta"):
        state = TwoStage(TwoStageConfig()).state_dict(prefix=RELEASED_PREFIX)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == released_shapes()
    assert len(state) == 465
    assert sum(tensor.numel() for tensor in state.values()) == pytest.approx(251.99e6, abs=5e3)


def test_a_batch_equals_its_narratives(text: Path) -> None:
    model, tokenizer = small_two_stage(text)
    captions = [CAPTION, "a dog on the grass"]
    spans = [SPANS, [(0, 5)]]
    tokens = [caption_rows(tokenizer, c, s, model.config) for c, s in zip(captions, spans, strict=True)]
    images = [some_proposals(3), some_proposals(6, seed=1)]
    batch = collate(tokens, images, model.config)
    with torch.no_grad():
        together = phrase_scores(model(*batch.inputs), batch.N)
        for b, (caption, image) in enumerate(zip(tokens, images, strict=True)):
            single = collate([caption], [image], model.config)
            alone = phrase_scores(model(*single.inputs), single.N)[0]
            assert torch.allclose(together[b, : len(alone), : len(image)], alone, atol=1e-4)
    assert batch.regions.sum(1).tolist() == [3, 6] and (batch.N.sum(1) > 0).sum(1).tolist() == [4, 1]


def test_padded_regions_change_the_result_as_released(text: Path) -> None:
    model, tokenizer = small_two_stage(text, mask_regions=False)
    tokens = caption_rows(tokenizer, CAPTION, SPANS, model.config)
    image = some_proposals(4)
    scores = []
    for config in (model.config, replace(model.config, mask_regions=True)):
        batch = collate([tokens], [image], config)
        with torch.no_grad():
            scores.append(phrase_scores(model(*batch.inputs), batch.N)[0, :4, :4])
        if not config.mask_regions:
            assert batch.features.shape[1] == TEST_REGIONS and batch.N.shape[2] == PHRASE_SLOTS
    assert not torch.allclose(*scores, atol=1e-3)
    with pytest.raises(InputError, match="59 regions in an image; the released code has room for 58"):
        collate([tokens], [some_proposals(59)], model.config)
    many = replace(tokens, rows=tokens.rows * 8)
    with pytest.raises(InputError, match="32 phrases in a narrative; the released code has room for 28"):
        collate([many], [image], model.config)


def test_a_chosen_padded_region_is_an_empty_mask(text: Path) -> None:
    image = some_proposals(4)
    assert not image.mask([TEST_REGIONS - 1]).any()
    assert image.mask([0, 3]).sum() == 2 * 12


def test_rows_of_word_pieces_and_of_words(text: Path) -> None:
    model, tokenizer = small_two_stage(text)
    pieces = caption_rows(tokenizer, CAPTION, SPANS, model.config)
    words = caption_rows(tokenizer, CAPTION, SPANS, replace(model.config, words="words"))
    assert pieces.ids == words.ids and pieces.ids[0] == tokenizer.cls_token_id
    assert pieces.rows[:2] == words.rows[:2] == ((1, 2), (5, 6))
    assert words.rows[2] == (9,) and pieces.rows[2] == tuple(range(9, 18))  # x ##y ##l ##o ...
    assert words.rows[3] == (12, 13) and pieces.rows[3] == (20, 21)
    decoded = [tokenizer.decode([pieces.ids[row] for row in rows]) for rows in pieces.rows]
    assert decoded == ["two dogs", "green grass", "xylophone", "red ball"]


def test_a_caption_is_cut(text: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, tokenizer = small_two_stage(text, max_pieces=12)
    tokens = caption_rows(tokenizer, CAPTION, SPANS, model.config)
    assert len(tokens.ids) == 12
    assert tokens.rows == ((1, 2), (5, 6), (9, 10), ())
    with caplog.at_level(logging.WARNING):
        choices = TwoStageGrounder(model, tokenizer).ground(some_proposals(3), CAPTION, SPANS)
    assert [choice is None for choice in choices] == [False, False, False, True]
    assert "1 phrases lie beyond the 12 word pieces" in caplog.text


class Fixed(TwoStage):
    """A second stage with a given affinity for every word."""

    def __init__(self, config: TwoStageConfig, affinity: list[float]) -> None:
        super().__init__(config)
        self.affinity = torch.tensor(affinity)

    def forward(self, ids: Any, *others: Any) -> Any:
        return self.affinity.expand(*ids.shape, -1)


def test_the_plural_rule_is_read_from_the_text_or_the_truth(text: Path) -> None:
    model, tokenizer = small_two_stage(text)
    fixed = Fixed(model.config, [-2.0, 30.0, 31.0, -3.0])  # sigmoid 0.119, 1, 1, 0.047
    spans = [SPANS[0], SPANS[3]]  # "two dogs", "red ball"
    by_text = TwoStageGrounder(fixed, tokenizer).ground(some_proposals(4), CAPTION, spans)
    assert [choice.rows for choice in by_text if choice] == [(0, 1, 2), (2,)]
    told = Fixed(replace(model.config, plural_rule="truth"), [-2.0, 30.0, 31.0, -3.0])
    grounder = TwoStageGrounder(told, tokenizer)
    by_truth = grounder.ground(some_proposals(4), CAPTION, spans, truly_plural=[False, True])
    assert [choice.rows for choice in by_truth if choice] == [(2,), (0, 1, 2)]
    with pytest.raises(InputError, match="plural_rule truth needs"):
        grounder.ground(some_proposals(4), CAPTION, spans)
    low = Fixed(model.config, [-5.0] * 4)
    choices = TwoStageGrounder(low, tokenizer).ground(some_proposals(4), CAPTION, spans)
    assert [choice.rows for choice in choices if choice] == [(), (0,)]


def test_an_image_without_regions(text: Path) -> None:
    model, tokenizer = small_two_stage(text)
    choices = TwoStageGrounder(model, tokenizer).ground(some_proposals(0), CAPTION, SPANS)
    assert [choice.rows for choice in choices if choice] == [()] * 4


@given(
    arrays(np.int32, (5, 6), elements=st.integers(0, 4)), arrays(np.int32, (5, 6), elements=st.integers(0, 3))
)
def test_targets_are_the_best_overlaps(truth: Any, regions: Any) -> None:
    rows = [(1,), (2, 3), (4, 1, 2), (9,)]
    targets = region_targets(truth, regions, rows, 3)
    for row, segments in zip(targets, rows, strict=True):
        best = set()
        for segment in segments:
            ious = [
                ((truth == segment) & (regions == n)).sum()
                / max(((truth == segment) | (regions == n)).sum(), 1)
                for n in (1, 2, 3)
            ]
            if max(ious) > 0:
                best.add(int(np.argmax(ious)))
        assert set(np.flatnonzero(row)) == best
    assert choose_regions(targets[3], plural=False, threshold=0.5) == (0,)  # the oracle's answer to nothing
    assert choose_regions(targets[2], plural=True, threshold=0.5) == tuple(np.flatnonzero(targets[2]))


def test_every_tensor_but_the_pooler_is_trained(text: Path) -> None:
    model, tokenizer = small_two_stage(text, dropout=0.0)
    tokens = caption_rows(tokenizer, CAPTION, SPANS, model.config)
    batch, Y = collate([tokens], [some_proposals(4)], model.config), torch.eye(4)[None]
    cells = (batch.N.sum(1) > 0)[:, :, None] & batch.regions[:, None]  # (B, n, P)
    loss = matching_loss(phrase_scores(model(*batch.inputs), batch.N), Y, cells)
    loss.backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None}
    assert silent == {"pooler.dense.weight", "pooler.dense.bias"}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=1e-3)
        assert matching_loss(phrase_scores(model(*batch.inputs), batch.N), Y, cells) < loss


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"width": 30}, "width is 30; it must be a multiple of heads = 12"),
        ({"region_size": 50_000}, "region_size is 50000; maps of stuff need a square number"),
        ({"max_pieces": 600}, "max_pieces is 600"),
        ({"plural_threshold": 1.5}, "plural_threshold is 1.5"),
    ],
)
def test_bad_configurations_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TwoStageConfig(**change)
