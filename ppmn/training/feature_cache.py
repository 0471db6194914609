"""A cache of the outputs of frozen encoders on disk: an image is encoded once, not in every epoch.

An entry is one file of half-precision tensors, found by the fingerprint of the encoder and the content
that was encoded. It is written under another name and moved into place, so an entry is always complete.
"""

import hashlib
import logging
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

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeatureCaches:
    """The cache of each encoder; None: its outputs are not cached."""

    image: "FeatureCache | None" = None
    text: "FeatureCache | None" = None


class FeatureCache:
    """A folder with the outputs of one encoder."""

    def __init__(self, folder: Path, encoder: str) -> None:
        self.folder = folder
        marker = folder / "encoder"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not marker.is_file():  # several processes may do this at once: atomically
                with replacing(marker) as part:
                    part.write_text(f"{encoder}\n")
            if marker.read_text().strip() != encoder:
                raise InputError(f"{folder} is the cache of another encoder; use another folder")
        except OSError as error:
            raise InputError(f"the cache {folder} cannot be written ({error})") from error

    def file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"

    def read(self, key: str) -> dict[str, Tensor] | None:
        """An entry, memory-mapped, or None if there is none."""
        file = self.file(key)
        if not file.is_file():
            return None
        try:
            with safe_open(file, framework="pt") as entry:
                return {name: entry.get_tensor(name) for name in entry.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InputError(f"the cache entry {file} is damaged ({error}); delete it") from error

    def write(self, key: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Write an entry and return it as it will be read, in half precision."""
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
        """Log how large the cache will become, and refuse if the disk has less space."""
        free = shutil.disk_usage(self.folder).free
        _log.info(
            f"the cache {self.folder} will take up to {size / 1e9:.2f} GB; {free / 1e9:.1f} GB are free"
        )
        if size > free:
            raise InputError(
                f"the cache needs {size / 1e9:.2f} GB and {self.folder} has {free / 1e9:.2f} GB free"
            )


def content_key(content: bytes) -> str:
    """SHA-256 of the content that is encoded, the key of its entry."""
    return hashlib.sha256(content).hexdigest()


def encoder_fingerprint(module: nn.Module, description: str) -> str:
    """SHA-256 of a module's tensors, and of a description of everything else that decides its outputs."""
    digest = hashlib.sha256(description.encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
