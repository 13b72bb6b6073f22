from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from udf_runtime import errors, udf
from udf_runtime.errors import (
    ArtifactError,
    CheckpointError,
    DevicesBusyError,
    EnvironmentBuildError,
    ServiceUnavailableError,
    SkipThresholdExceededError,
    UdfDefinitionError,
    UdfFailedError,
    UdfOutputError,
    UdfProcessDiedError,
    UdfRuntimeError,
)
from udf_runtime.execute import UdfRunner

EXAMPLES: list[tuple[UdfRuntimeError, type[Exception]]] = [
    (UdfDefinitionError("This happened. Do that."), ValueError),
    (
        UdfFailedError(
            udf="f",
            row=3,
            error_type="builtins.KeyError",
            error_message="'x'",
            error_trace="tb",
            attempt=2,
            max_attempts=3,
        ),
        RuntimeError,
    ),
    (UdfOutputError("This happened. Do that.", udf="f", row=4), ValueError),
    (UdfProcessDiedError(udf="f", exit_code=-11, row=2), RuntimeError),
    (ServiceUnavailableError(udf="f", reason="HTTP 503 for 600 s"), RuntimeError),
    (SkipThresholdExceededError(skipped=11, processed=20, limit="max_skip_count=10"), RuntimeError),
    (
        ArtifactError(artifact="model", location="/m", reason="no such file", hint="restore it"),
        RuntimeError,
    ),
    (CheckpointError("This happened. Do that."), OSError),
    (DevicesBusyError(devices=("0", "1"), share=1, seconds=5), TimeoutError),
    (
        EnvironmentBuildError(manifest="m", reason="no such package", hint="correct its name"),
        RuntimeError,
    ),
]


def test_every_error_of_the_module_has_an_example():
    classes = {
        c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, UdfRuntimeError)
    }
    assert classes - {UdfRuntimeError} == {type(error) for error, _ in EXAMPLES}


@pytest.mark.parametrize(("error", "builtin"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_survives_pickling_with_its_facts_and_is_a_built_in_one(
    error: UdfRuntimeError, builtin: type[Exception]
):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert isinstance(copy, builtin)


@pytest.mark.parametrize(
    "error", [error for error, _ in EXAMPLES], ids=lambda error: type(error).__name__
)
def test_a_message_is_made_of_sentences(error: UdfRuntimeError):
    text = str(error)
    assert text[0].isupper()
    assert text.endswith(".")
    assert " - " not in text


def test_a_failure_names_the_row_and_the_attempt():
    error = EXAMPLES[1][0]
    assert "row 3 of the batch, attempt 2 of 3" in str(error)
    assert "builtins.KeyError: 'x'" in str(error)


def test_a_dead_process_is_told_by_its_signal_or_its_exit_code():
    assert "(signal 9)" in str(UdfProcessDiedError(udf="f", exit_code=-9))
    assert "(exit code 3)" in str(UdfProcessDiedError(udf="f", exit_code=3))


def test_a_module_that_is_missing_is_to_be_installed_and_blamed_on_neither_function_nor_input():
    @udf
    def needs_a_module(x: int) -> int:
        import nothing_of_this_name  # type: ignore[import-not-found]

        return int(nothing_of_this_name.of(x))

    batch = pa.record_batch([pa.array([1], pa.int64())], names=["x"])
    with (
        UdfRunner(needs_a_module) as runner,
        pytest.raises(UdfFailedError, match="Install the module") as caught,
    ):
        list(runner.run([batch]))
    assert "Correct the function" not in str(caught.value)


def test_an_error_without_a_message_is_named_by_its_type():
    @udf
    def refuse(x: int) -> int:
        raise AssertionError

    batch = pa.record_batch([pa.array([1], pa.int64())], names=["x"])
    with (
        UdfRunner(refuse) as runner,
        pytest.raises(UdfFailedError, match=r"raised AssertionError\. Place: row 0"),
    ):
        list(runner.run([batch]))
