"""Read foreign checkpoints without running any code that is in them.

PyTorch files are read with `weights_only`, other pickles by an unpickler that allows only containers and
NumPy arrays. Both use stand-ins for NumPy's own reconstructors, which accept flags from the file that can
turn bytes into pointers.
"""

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from ppmn.errors import InputError

_TORCH_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # PyTorch files before 1.6


class DType:
    """Stands in for `numpy.dtype`: plain numbers only."""

    __slots__ = ("value",)

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        if not isinstance(code, str) or not re.fullmatch(r"[biuf]\d{1,2}", code):
            raise pickle.UnpicklingError(f"arrays of {code!r} are not plain numbers")
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.value = self.value.newbyteorder(state[1])


class Array:
    """Stands in for `numpy.ndarray`."""

    __slots__ = ("value",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        data = data.encode("latin1") if isinstance(data, str) else data
        self.value = np.frombuffer(data, dtype.value).reshape(shape, order="F" if fortran else "C")

    def tensor(self) -> Tensor:
        """A tensor with a copy of the array's values."""
        native = self.value.astype(self.value.dtype.newbyteorder("="), order="C")
        return torch.from_numpy(native)


def reconstruct(kind: type, shape: tuple[int, ...], code: bytes) -> Array:
    """`numpy.core.multiarray._reconstruct`; the contents follow as the array's state."""
    return Array()


def from_buffer(data: bytes, dtype: DType, shape: tuple[int, ...], order: str) -> Array:
    """`numpy.core.numeric._frombuffer`."""
    array = Array()
    array.__setstate__((1, shape, dtype, order == "F", bytes(data)))
    return array


def scalar(dtype: DType, data: bytes | str) -> float:
    """`numpy.core.multiarray.scalar`."""
    data = data.encode("latin1") if isinstance(data, str) else data
    return np.frombuffer(data, dtype.value, 1)[0].item()


def latin1(text: str, encoding: str) -> bytes:
    """`_codecs.encode`, as old protocols write bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes are written as latin1, not as {encoding!r}")
    return text.encode("latin1")


def no_bytes() -> bytes:
    """`bytes()`, as old protocols write empty ones."""
    return b""


_NUMPY: dict[str, Any] = {"numpy.dtype": DType, "numpy.ndarray": Array}
for core in ("numpy.core", "numpy._core"):  # before and since NumPy 2
    _NUMPY[f"{core}.multiarray._reconstruct"] = reconstruct
    _NUMPY[f"{core}.multiarray.scalar"] = scalar
    _NUMPY[f"{core}.numeric._frombuffer"] = from_buffer
_ALLOWED = {
    **_NUMPY,
    "collections.OrderedDict": OrderedDict,
    "_codecs.encode": latin1,
    "__builtin__.bytes": no_bytes,
}


class PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers, strings and NumPy arrays; anything else that a pickle names is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _ALLOWED:
            raise pickle.UnpicklingError(f"Unsupported global: GLOBAL {module}.{name}")
        return _ALLOWED[f"{module}.{name}"]


def read_checkpoint(file: Path) -> Any:
    """The content of a safetensors file, a PyTorch file or a pickle of NumPy arrays."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_TORCH_MAGIC))
        if file.suffix == ".safetensors":
            return load_file(file)
        if start == _TORCH_MAGIC or start.startswith(b"PK"):
            allowed: list[Any] = [(stand_in, name) for name, stand_in in _NUMPY.items()]
            with torch.serialization.safe_globals(allowed):
                return torch.load(file, "cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        with file.open("rb") as stream:
            return PlainUnpickler(stream, encoding="latin1").load()
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error})") from error
    except Exception as error:  # a broken pickle may raise anything
        raise InputError(_refusal(file, error)) from error


def _refusal(file: Path, error: Exception) -> str:
    """One sentence for a file that is broken, not a checkpoint, or would run code."""
    asked = re.search(r"GLOBAL (\S+)", str(error))
    if asked:
        return f"{file} is refused: it asks for {asked[1]}, and only tensors, numbers and containers are read"
    message = str(error).rpartition("WeightsUnpickler error: ")[2].strip() or type(error).__name__
    reason = message.splitlines()[0][:200].rstrip(". ")
    return f"{file} is truncated or not a checkpoint ({reason})"


def tensors_of(raw: Any, where: str) -> dict[str, Tensor]:
    """The tensors of a state dict, without the prefix `module.` of distributed training."""
    if not isinstance(raw, Mapping):
        raise InputError(f"{where} holds {type(raw).__name__} where named tensors were expected")
    tensors = {}
    for name, value in raw.items():
        tensor = value.tensor() if isinstance(value, Array) else value
        if isinstance(name, str) and isinstance(tensor, Tensor):
            tensors[name.removeprefix("module.")] = tensor.detach()
    return tensors
