"""Texts as parts of file names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_runtime.checkpoint.names import quote, unquote


@given(st.text(min_size=1, max_size=13))
def test_any_text_comes_back_from_its_name(text: str) -> None:
    quoted = quote(text)
    assert re.fullmatch("[A-Za-z0-9_=-]+", quoted)
    assert unquote(quoted) == text


def test_usual_ids_stay_readable() -> None:
    assert quote("6f1e-nightly_run") == "6f1e-nightly_run"
    assert quote("a/b c") == "a=2Fb=20c"


@pytest.mark.parametrize("text", ["", "x" * 161, "é" * 40])
def test_texts_that_are_no_file_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="file name"):
        quote(text)


@pytest.mark.parametrize("name", ["a b", "é", "=61", "=GG", "=C3"])
def test_a_name_that_was_not_quoted_here_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"quoted name|codec"):
        unquote(name)
