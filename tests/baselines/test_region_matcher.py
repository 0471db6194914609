"""The packed rows of the small two-stage matcher against the same layers on a padded batch."""

import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor

from ppmn.baselines.bert_layers import LayerShape, key_mask
from ppmn.baselines.region_matcher import RegionMatcher
from ppmn.baselines.two_stage import phrase_scores
from ppmn.model.windows import Tokens

WORDS, REGIONS = (3, 9, 1), (5, 1, 0)
PHRASES = (((0, 1), (2,)), ((4,), (8, 0)), ((0,),))


def padded_scores(matcher: RegionMatcher, regions: list[Tensor], words: list[Tensor]) -> Tensor:
    """As published: all rows of a padded batch, masked as keys; (B, 2, 5)."""
    V = torch.stack([fn.pad(r, (0, 0, 0, max(REGIONS) - len(r))) for r in regions])
    L = torch.stack([fn.pad(w, (0, 0, 0, max(WORDS) - len(w))) for w in words])
    seen = torch.arange(max(REGIONS)) < torch.tensor(REGIONS).clamp(min=1)[:, None]
    read = torch.arange(max(WORDS)) < torch.tensor(WORDS)[:, None]
    V, L = matcher.region_layer(matcher.regions(V), key_mask(seen)), matcher.words(L)
    for layer in matcher.cross_layers:
        L, V = layer(L, V, key_mask(read), key_mask(seen))
    N = torch.zeros(len(words), max(WORDS), 2, dtype=L.dtype)
    for b, phrases in enumerate(PHRASES):
        for n, pieces in enumerate(phrases):
            N[b, list(pieces), n] = 1
    return phrase_scores(L @ V.transpose(1, 2) / matcher.scale, N)


@pytest.fixture
def matcher() -> RegionMatcher:
    torch.manual_seed(0)
    return RegionMatcher(11, 7, LayerShape(16, 4, 32, 0.1), 2).double().eval()


def test_packed_rows_give_the_scores_of_a_padded_batch(matcher: RegionMatcher) -> None:
    generator = torch.Generator().manual_seed(1)
    regions = [torch.randn(n, 11, generator=generator, dtype=torch.float64) for n in REGIONS]
    words = [torch.randn(n, 7, generator=generator, dtype=torch.float64) for n in WORDS]
    captions = [Tokens(tuple(range(n)), pieces) for n, pieces in zip(WORDS, PHRASES, strict=True)]
    expected = padded_scores(matcher, regions, words)
    found = matcher(regions, words, captions)
    assert [tuple(own.shape) for own in found] == [(2, 5), (2, 1), (1, 0)]
    for own, padded in zip(found, expected, strict=True):
        torch.testing.assert_close(own, padded[: own.shape[0], : own.shape[1]], rtol=1e-10, atol=1e-12)


def test_packed_rows_give_the_gradients_of_a_padded_batch(matcher: RegionMatcher) -> None:
    generator = torch.Generator().manual_seed(2)
    regions = [torch.randn(n, 11, generator=generator, dtype=torch.float64) for n in REGIONS]
    words = [torch.randn(n, 7, generator=generator, dtype=torch.float64) for n in WORDS]
    captions = [Tokens(tuple(range(n)), pieces) for n, pieces in zip(WORDS, PHRASES, strict=True)]
    parameters = list(matcher.parameters())
    found = sum(own.square().sum() for own in matcher(regions, words, captions))
    padded = padded_scores(matcher, regions, words)
    counts = zip(padded, PHRASES, REGIONS, strict=True)
    wanted = sum(own[: len(phrases), :count].square().sum() for own, phrases, count in counts)
    assert isinstance(found, Tensor) and isinstance(wanted, Tensor)
    pairs = zip(torch.autograd.grad(found, parameters), torch.autograd.grad(wanted, parameters), strict=True)
    for own, reference in pairs:
        torch.testing.assert_close(own, reference, rtol=1e-9, atol=1e-11)
