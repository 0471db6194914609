"""Which runtime a model folder is opened in."""

import importlib.metadata
import logging
import shutil
from pathlib import Path

from ppmn.errors import InputError
from ppmn.grounding.onnx_runtime import OnnxRuntime, has_graphs, is_installed
from ppmn.grounding.runtime import Runtime, RuntimeName, RuntimePrecision

_log = logging.getLogger(__name__)


def open_runtime(
    folder: Path,
    *,
    device: str | None = None,
    runtime: RuntimeName = "auto",
    precision: RuntimePrecision = "auto",
    threads: int | None = None,
) -> Runtime:
    """The network of a model folder, ready to run; options as in `ppmn.load`."""
    if runtime not in ("auto", "onnx", "torch"):
        raise InputError(f"the runtime is {runtime!r}; it must be auto, onnx or torch")
    if precision not in ("auto", "float32"):
        raise InputError(f"the precision is {precision!r}; it must be auto or float32")
    if threads is not None and threads < 1:
        raise InputError(f"threads is {threads}; it must be at least 1")
    if runtime == "onnx" and device not in (None, "cpu"):
        raise InputError(f"the device is {device}; with runtime onnx it must be cpu")
    if runtime == "onnx":
        return OnnxRuntime(folder, precision=precision, threads=threads)
    # On a CPU graphs come first: in 8 bits an image takes 0.36 of torch's time in float32 (bench/runtime.py).
    # Where they are in float32, or the processor is fast in bfloat16, torch may encode faster; to find out,
    # it would have to be imported, which takes longer than an image.
    if runtime == "auto" and has_graphs(folder) and not (device != "cpu" if device else has_gpu()):
        try:
            return OnnxRuntime(folder, precision=precision, threads=threads)
        except InputError as error:
            if not is_installed("torch"):
                raise
            _log.warning("the model runs on torch, because its graphs cannot be used: %s", error)
    return _open_torch(folder, device, precision, threads)


def _open_torch(
    folder: Path, device: str | None, precision: RuntimePrecision, threads: int | None
) -> Runtime:
    if not is_installed("torch"):
        raise InputError(
            f"{folder} cannot be run without torch, which is not installed: pip install 'ppmn[torch]'"
        )
    from ppmn.grounding.methods import METHODS
    from ppmn.grounding.torch_runtime import TorchRuntime
    from ppmn.model.folder import load_model

    return TorchRuntime(load_model(folder, METHODS), device=device, precision=precision, threads=threads)


def has_gpu() -> bool:
    """Whether torch would find a GPU; torch is imported only where that is likely, because it takes long."""
    if not is_installed("torch") or importlib.metadata.version("torch").endswith("+cpu"):
        return False
    if not (Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") or shutil.which("rocm-smi")):
        return False
    import torch

    return torch.cuda.is_available()
