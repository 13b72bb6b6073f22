"""The examples in the docstrings of the package run."""

from __future__ import annotations

import doctest
import sys

import pytest

import udf_runtime

PUBLIC = [value for name, value in vars(udf_runtime).items() if name in udf_runtime.__all__]


@pytest.mark.parametrize("value", PUBLIC, ids=lambda value: value.__name__)
def test_a_public_name_has_an_example(value: type):
    assert ">>> " in str(value.__doc__)


@pytest.mark.parametrize("module", sorted({value.__module__ for value in PUBLIC}))
def test_the_examples_run(module: str):
    result = doctest.testmod(sys.modules[module])
    assert result.attempted
    assert not result.failed
