"""Reading and writing files so that errors are sentences and nothing already written is lost."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import platformdirs

from ppmn.errors import InputError


def read_json(file: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror})") from error
    except ValueError as error:  # broken JSON and broken UTF-8
        raise InputError(f"{file} is not JSON ({error})") from error


def cache_folder() -> Path:
    """$PPMN_CACHE, or the user's cache folder for `ppmn`."""
    own = os.environ.get("PPMN_CACHE")
    return Path(own) if own else platformdirs.user_cache_path("ppmn", appauthor=False)


def existing_file(file: Path, absence: str) -> Path:
    """The file, or an error that begins with what its absence means."""
    if not file.is_file():
        raise InputError(f"{absence}: {file} is missing")
    return file


def make_folder(folder: Path) -> Path:
    """The folder, made with its parents where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror})") from error
    return folder


def make_writable_folder(folder: Path) -> Path:
    """The folder, made where it is missing; refused if no file can be written to it."""
    make_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be written to ({error.strerror})") from error


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A temporary file beside `file` to write to; it replaces `file` on success and is removed otherwise."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        mode = part.stat().st_mode  # as the user's umask allows; some writers restrict a file to its owner
        yield part
        part.chmod(mode)
        part.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error})") from error
    finally:
        with suppress(OSError):  # its folder may be a file
            part.unlink()


def write_json(file: Path, content: Any, *, indent: int | None = None) -> None:
    """Write a JSON file, completely or not at all."""
    with replacing(file) as part:
        part.write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8")


def check_writable(files: list[Path]) -> None:
    """Refuse before the work what could not be written after it."""
    for file in files:
        if file.is_dir():
            raise InputError(f"{file} is a folder, not a file to write to")
        if not os.access(file.parent, os.W_OK):
            raise InputError(f"{file} cannot be written: the folder {file.parent} is missing or read-only")


def from_dict(kind: Any, raw: Any, where: str) -> Any:
    """A frozen dataclass from plain JSON, checked field by field."""
    if not isinstance(raw, dict):
        raise InputError(f"{where} holds {type(raw).__name__} where {kind.__name__} was expected")
    known = {f.name: f for f in fields(kind)}
    unknown = sorted(set(raw) - set(known))
    if unknown:
        raise InputError(f"{where} has unknown fields for {kind.__name__}: {', '.join(unknown)}")
    return kind(**{name: checked(known[name].type, value, f"{where}, {name}") for name, value in raw.items()})


def checked(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as the type of its field, or an error that names the field and the value."""
    if isinstance(kind, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        kind = _member(kind, value)
    if is_dataclass(kind):
        return from_dict(kind, value, where)
    if get_origin(kind) is tuple:
        return _checked_list(get_args(kind)[0], value, where)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise InputError(f"{where} is {value!r}; it must be one of {', '.join(map(str, get_args(kind)))}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and type(value) is not kind:
        raise InputError(f"{where} is {value!r}; it must be {kind.__name__}")
    return value


def _member(union: UnionType, value: Any) -> Any:
    """The dataclass of a union that a value is of, by its field `kind`; the first if none says so."""
    members = [member for member in get_args(union) if is_dataclass(member)]
    named = value.get("kind") if isinstance(value, dict) else None
    return next((m for m in members if named is not None and getattr(m, "kind", None) == named), members[0])


def _checked_list(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    whole = isinstance(value, list | tuple)
    numbers = [float(v) if kind is float and type(v) is int else v for v in value] if whole else []
    if not whole or not all(type(v) is kind for v in numbers):
        raise InputError(f"{where} is {value!r}; it must be a list of {kind.__name__}")
    return tuple(numbers)
