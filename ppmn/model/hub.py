"""Models on the Hugging Face hub: download the files of a model folder, upload them. Nothing is pickled."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ppmn.errors import InputError

MODEL_FILES = (
    "config.json",
    "model.safetensors",
    "text/*.json",
    "text/*.txt",
    "image/*.json",
    "onnx/*.onnx",
    "onnx/*.json",
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_SECONDS = 10  # to wait for the hub before the cached copy is taken
_Result = TypeVar("_Result")


def is_hub_name(name: str) -> bool:
    """Whether a text has the form of a model on the hub, `owner/name` or `owner/name@revision`."""
    return bool(_HUB_NAME.fullmatch(name))


def download_model(name: str) -> Path:
    """The folder of a model on the hub, downloaded once; without a network a copy that is there is taken."""
    hub = import_hub()
    repo, _, revision = name.partition("@")
    folder = _reported(
        f"{name} is neither a folder nor a model that can be downloaded",
        hub.snapshot_download,
        repo_id=repo,
        revision=revision or None,
        allow_patterns=list(MODEL_FILES),
        etag_timeout=_SECONDS,
        endpoint=os.environ.get("HF_ENDPOINT"),
    )
    return Path(folder)


def upload_model(name: str, files: Mapping[str, bytes | Path], *, private: bool, token: str | None) -> str:
    """Make the repository of a model if it is missing, and commit files to it, by their names there."""
    hub = import_hub()
    if not is_hub_name(name) or "@" in name:
        raise InputError(f"{name!r} is not a name on the hub; owner/name is one")
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    failed = f"the model could not be uploaded to {name}"
    _reported(failed, api.create_repo, name, private=private, exist_ok=True)
    operations = [
        hub.CommitOperationAdd(path, content if isinstance(content, bytes) else str(content))
        for path, content in files.items()
    ]
    message = "Add the model with ppmn"
    found = _reported(failed, api.create_commit, name, operations, commit_message=message)
    return str(found.commit_url)


def import_hub() -> Any:
    """The package huggingface_hub."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError("huggingface_hub is not installed: pip install 'ppmn[hub]'") from error
    return huggingface_hub


def _reported(failed: str, call: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
    """The result of a call to the hub; its errors, of many kinds, become one sentence."""
    try:
        return call(*args, **options)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{failed} ({reason})") from error
