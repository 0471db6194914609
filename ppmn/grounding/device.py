"""Where a model runs: a CPU, a CUDA GPU, or Apple's GPU (mps) as far as that supports the model."""

import logging

import torch

from ppmn.errors import InputError
from ppmn.model.method import Method

_SIDE = 128  # of a small image, in pixels
_log = logging.getLogger(__name__)


def place(model: Method, device: str | None) -> str:
    """Put a model on a device and return its name; None takes a CUDA GPU where there is one, else the CPU.

    What Apple's GPU does not support is noticed on a small image, and then the model runs on the CPU.
    """
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.to(chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device {chosen} cannot be used ({error})") from error
    if not chosen.startswith("mps"):
        return chosen
    missing = unsupported(model)
    if missing is None:
        return chosen
    _log.warning("the device %s does not support this model (%s): it runs on the CPU", chosen, missing)
    model.to("cpu")
    return "cpu"


@torch.inference_mode()
def unsupported(model: Method) -> str | None:
    """What a model's device cannot compute, as a sentence; None if nothing is missing."""
    multiple = model.image_encoder.multiple
    side = multiple * -(-_SIDE // multiple)
    try:
        encoded = model.eval().encode(model.pyramid([torch.zeros(3, side, side, dtype=torch.uint8)]))
        model.ground(encoded, [model.tokenize("a dog", [(2, 5)])])
    except (NotImplementedError, RuntimeError, TypeError) as error:
        return str(error).strip().splitlines()[0]
    return None
