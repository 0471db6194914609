"""Tests that compute in bfloat16."""

import pytest

from ppmn.model.bfloat16 import bfloat16_faults

uses_bfloat16 = pytest.mark.skipif(bfloat16_faults(), reason="bfloat16 instructions fault on this processor")
