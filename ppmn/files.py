"""Writing files so that nothing already written is lost."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ppmn.errors import InputError


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A file beside `file` to write to; it takes its place when all went well, and is gone otherwise."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        mode = part.stat().st_mode  # what the user's mask allows; some writers keep a file to its owner
        yield part
        part.chmod(mode)
        part.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error})") from error
    finally:
        part.unlink(missing_ok=True)


def check_writable(files: list[Path]) -> None:
    """Refuse, before hours of work, what could not be written after them."""
    for file in files:
        if file.is_dir():
            raise InputError(f"{file} is a folder, not a file to write to")
        if not os.access(file.parent, os.W_OK):
            raise InputError(f"{file} cannot be written: the folder {file.parent} is missing or read-only")
