"""The variant "released" against outputs of the authors' code that are stored in the repository."""

import pytest
import torch
from support.parity import SeededFixture, check_gradient_norms, check_losses

from ppmn.model.losses import ppm_losses, total_loss


@pytest.fixture(scope="module")
def fixture() -> SeededFixture:
    return SeededFixture()


def test_maps_of_all_rounds(fixture: SeededFixture) -> None:
    head = fixture.head()
    for grad in (False, True):  # the two implementations of an upsampled convolution
        with torch.set_grad_enabled(grad):
            fixture.check_maps(head)


def test_losses_and_gradient_norms(fixture: SeededFixture) -> None:
    head = fixture.head()
    losses = ppm_losses(fixture.run(head).H, fixture.target, head.config)
    check_losses(losses, fixture.meta["loss_rounds"], fixture.meta["loss_total"])
    total_loss(losses).backward()
    check_gradient_norms(head, fixture.meta["grad_norms"])
