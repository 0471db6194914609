"""Which runtime a model folder is opened in."""

import importlib.metadata
import shutil
from pathlib import Path

from ppmn.errors import InputError
from ppmn.grounding.onnx_runtime import OnnxRuntime, has_graphs, is_installed
from ppmn.grounding.runtime import Runtime, RuntimeName, RuntimePrecision


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
    if runtime == "auto":
        on_gpu = device != "cpu" if device else has_gpu()
        runtime = "onnx" if has_graphs(folder) and not on_gpu else "torch"
    if runtime == "onnx":
        return OnnxRuntime(folder, precision=precision, threads=threads)
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
