"""`ROOT[:SPLIT][=WEIGHT]` as the command line reads it."""

import shutil
from pathlib import Path

import pytest
from support.benchmark import write_data

from ppmn.cli.arguments import parse_spec
from ppmn.data.panoptic import DataSpec
from ppmn.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def test_data_specs(root: Path) -> None:
    assert parse_spec(str(root)) == DataSpec(root, None, 1.0)
    assert parse_spec(f"{root}:val2017=0.5") == DataSpec(root, "val2017", 0.5)
    assert parse_spec(f"{root}=3") == DataSpec(root, None, 3.0)
    odd = shutil.copytree(root, root.with_name("a:b=c"))
    assert parse_spec(f"{odd}:val2017=2") == DataSpec(odd, "val2017", 2.0)


@pytest.mark.parametrize("spec", ["", "nowhere", ":val2017", "{}:test", "{}=x", "{}=-1", "{}=nan", "{}=0"])
def test_bad_data_specs_are_refused(root: Path, spec: str) -> None:
    with pytest.raises(InputError, match="data "):
        parse_spec(spec.format(root))
