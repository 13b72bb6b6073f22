"""Decorated methods remain ordinary methods, and their parameters are described in errors."""

from __future__ import annotations

import doctest
import inspect
import pickle
import typing

import pytest

import lance_spark.arguments
from lance_spark import Table
from lance_spark.errors import OptionError

METHODS = [Table.backfill, Table.backfill_async]


def test_the_examples_run():
    result = doctest.testmod(lance_spark.arguments)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_methods_with_a_request_can_be_pickled_and_have_type_hints(method: typing.Any):
    assert pickle.loads(pickle.dumps(method)) is method
    hints = typing.get_type_hints(method)
    parameters = [name for name in inspect.signature(method).parameters if name != "self"]
    assert [name for name in parameters if isinstance(hints[name], str)] == []


def test_a_wrong_argument_of_a_method_with_a_request_names_the_parameter():
    with pytest.raises(OptionError, match="'where'"):
        Table.backfill(object.__new__(Table), "double", where=3)


def test_a_wrong_value_of_add_columns_shows_the_accepted_values():
    with pytest.raises(
        OptionError, match=r"transforms.*\(A dict from column names to SQL texts or UDFs"
    ):
        Table.add_columns(object.__new__(Table), 3)
