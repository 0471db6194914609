"""Outputs of frozen encoders, kept on disk: a photo is encoded once, whatever the epochs.

An entry is one file of half-precision tensors, found by the encoder's fingerprint and the content it
encodes. It is written under another name and moved into place, so that what is there is whole.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ppmn.errors import InputError
from ppmn.files import replacing


@dataclass(frozen=True)
class Caches:
    """Of each encoder, where its outputs are kept; None where they are not."""

    image: "Cache | None" = None
    text: "Cache | None" = None


class Cache:
    """A folder of what one encoder made."""

    def __init__(self, folder: Path, encoder: str) -> None:
        self.folder = folder
        mark = folder / "encoder"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not mark.is_file():  # several processes may open it at once: it is there whole, or not yet
                with replacing(mark) as part:
                    part.write_text(f"{encoder}\n")
            if mark.read_text().strip() != encoder:
                raise InputError(
                    f"{folder} holds what another encoder made; give this one a folder of its own"
                )
        except OSError as error:
            raise InputError(f"the cache {folder} cannot be written ({error})") from error

    def file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"

    def read(self, key: str) -> dict[str, Tensor] | None:
        """An entry, memory-mapped, or None where it is not there."""
        file = self.file(key)
        if not file.is_file():
            return None
        try:
            with safe_open(file, framework="pt") as entry:
                return {name: entry.get_tensor(name) for name in entry.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InputError(f"the cache entry {file} is damaged ({error}); delete it") from error

    def write(self, key: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Keep an entry; what comes back is what will be read, in half precision."""
        halves = {name: value.detach().half().cpu().contiguous() for name, value in tensors.items()}
        file = self.file(key)
        part = file.with_name(f".{key}.{os.getpid()}")
        try:
            file.parent.mkdir(exist_ok=True)
            part.write_bytes(save(halves))
            part.replace(file)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise InputError(f"the cache {self.folder} could not be written ({error.strerror})") from error
        return halves

    def require(self, size: float) -> None:
        """Say how much it will take before the first byte, and refuse where there is no room."""
        free = shutil.disk_usage(self.folder).free
        print(f"the cache {self.folder} will take up to {size / 1e9:.2f} GB; {free / 1e9:.1f} GB are free")
        if size > free:
            raise InputError(
                f"the cache needs {size / 1e9:.2f} GB and {self.folder} has {free / 1e9:.2f} GB free"
            )


def content_key(content: bytes) -> str:
    """The name of what is encoded, by its content."""
    return hashlib.sha256(content).hexdigest()


def fingerprint(module: nn.Module, about: str) -> str:
    """SHA-256 of a module's tensors by name, and of what else decides its outputs."""
    digest = hashlib.sha256(about.encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
