from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from udf_runtime import (
    UDF,
    Columns,
    ErrorPolicy,
    Kind,
    Retry,
    Skip,
    UdfDefinitionError,
    UnpackedUDF,
    as_udf,
    chunker,
    udf,
    udtf,
)
from udf_runtime.definition.spec import Settings

ROOT = Path(__file__).parents[3]


@udf
def double(a: int) -> int:
    """Doubles."""
    return a * 2


@udf(num_cpus=2, version="7")
def add(a: int, b: int, c: int = 10) -> int:
    return a + b + c


def test_a_udf_is_still_called_like_the_function():
    assert double(3) == 6
    assert add(1, 2) == 13
    assert add(1, b=2, c=3) == 6
    assert repr(double) == "<UDF double(a) -> int64, scalar>"


def test_the_decorator_works_bare_called_and_as_a_function():
    assert isinstance(double, UDF)
    assert (add.num_cpus, add.version) == (2, "7")
    assert udf(lambda x: x, data_type=pa.int8(), name="same").name == "same"


def test_a_udf_cannot_be_changed_or_decorated_twice():
    with pytest.raises(dataclasses.FrozenInstanceError):
        double.name = "other"  # type: ignore[misc]
    with pytest.raises(UdfDefinitionError, match="a UDF already"):
        udf(double)


def test_a_parameter_with_a_default_is_an_input_only_where_a_column_is_given_for_it():
    assert add.input_columns == ("a", "b")
    assert add.with_input_columns(["x", "y", "z"]).input_columns == ("x", "y", "z")
    assert [p.name for p in add.with_input_columns(["x", "y", "z"]).parameters] == ["a", "b", "c"]
    with pytest.raises(UdfDefinitionError, match=r"Every parameter of UDF '.*' has a default"):
        udf(lambda x=1: x, data_type=pa.int8())


@pytest.mark.parametrize(("columns", "expected"), [(["x"], "2 to 3"), (list("wxyz"), "2 to 3")])
def test_a_wrong_number_of_columns_is_refused(columns: list[str], expected: str):
    reason = f"expects {expected} parameters but {len(columns)} input columns were given"
    with pytest.raises(UdfDefinitionError, match=reason):
        add.with_input_columns(columns)
    with pytest.raises(
        UdfDefinitionError, match=r"expects 1 parameters but 2 input columns were given \(x, y\)"
    ):
        udf(double.load(), input_columns=["x", "y"])


def test_a_record_batch_udf_takes_no_input_columns():
    def f(rows: pa.RecordBatch) -> pa.Array: ...

    with pytest.raises(UdfDefinitionError, match="Drop input_columns"):
        udf(f, data_type=pa.int8(), input_columns=["a"])
    with pytest.raises(UdfDefinitionError, match="Drop input_columns"):
        udf(f, data_type=pa.int8()).with_input_columns(["a"])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"auto_backfill": 1}, "auto_backfill"),
        ({"on_error": Skip(), "error_handling": Skip()}, "are the same"),
        ({"on_error": "skip"}, "on_error"),
        ({"version": ""}, "version"),
        ({"name": ""}, "name"),
        ({"memory": 0}, "memory=0"),
        ({"task_size": -1}, "task_size=-1"),
        ({"num_cpus": -1}, "num_cpus=-1"),
        ({"num_gpus": float("nan")}, "num_gpus=nan"),
        ({"timeout": 0}, "timeout=0"),
        ({"min_checkpoint_size": 5, "max_checkpoint_size": 4}, "above max_checkpoint_size=4"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_refused(wrong: dict[str, object], reason: str):
    with pytest.raises(UdfDefinitionError, match=reason) as caught:
        udf(double.load(), **wrong)  # type: ignore[arg-type]
    assert re.fullmatch(r"[A-Z].*\. [A-Z].*\.", str(caught.value))


@pytest.mark.parametrize(
    "wrong",
    [
        {"manifest": "env"},
        {"data_type": int},
        {"input_columns": "a"},
        {"input_columns": [1]},
        {"version": 3},
        {"memory": 1.5},
        {"checkpoint_size": True},
        {"field_metadata": {"a": 1}},
    ],
    ids=str,
)
def test_a_setting_of_another_type_is_refused_by_name(wrong: dict[str, object]):
    with pytest.raises(
        UdfDefinitionError,
        match=f"^The argument '{next(iter(wrong))}' has the wrong value .* Give ",
    ):
        udf(double.load(), **wrong)  # type: ignore[arg-type]


def test_a_timeout_is_for_scalar_and_async_udfs_only():
    def f(a: pa.Array) -> pa.Array: ...

    assert udf(double.load(), timeout=1.5).timeout == 1.5
    with pytest.raises(UdfDefinitionError, match="timeout is per call of a scalar or async UDF"):
        udf(f, data_type=pa.int8(), timeout=1.5)


def test_deprecated_names_warn_at_the_caller_and_do_what_they_did():
    with pytest.warns(DeprecationWarning, match="num_gpus=1") as caught:
        gpu_udf = udf(double.load(), cuda=True)
    assert gpu_udf.num_gpus == 1.0
    assert caught[0].filename == __file__
    assert udf(double.load(), error_handling=[Retry(OSError)]).on_error == ErrorPolicy.of(
        [Retry(OSError)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UdfDefinitionError, match="are the same"):
            udf(double.load(), cuda=True, num_gpus=1)


def test_rows_of_calls_and_of_checkpoints_are_separate_settings():
    def f(a: pa.Array, b: pa.Array) -> pa.Array: ...

    sized = udf(f, data_type=pa.int8(), batch_size=7, checkpoint_size=9, prefetch_batches=3)
    assert (sized.batch_size, sized.checkpoint_size, sized.prefetch_batches, sized.call_rows) == (
        7,
        9,
        3,
        7,
    )
    assert udf(f, data_type=pa.int8(), batch_size="auto").call_rows == 1
    assert udf(double.load(), batch_size=7).call_rows == 1
    assert sized.version == udf(f, data_type=pa.int8()).version
    for wrong in (
        {"batch_size": 0},
        {"batch_size": "most"},
        {"prefetch_batches": 0},
        {"sort_batch_by": 5},
    ):
        with pytest.raises(UdfDefinitionError, match=next(iter(wrong))):
            udf(f, data_type=pa.int8(), **wrong)  # type: ignore[arg-type]


def test_rows_are_sorted_by_an_input_whose_column_may_change():
    def f(a: pa.Array, b: pa.Array) -> pa.Array: ...

    by_column = udf(f, data_type=pa.int8(), input_columns=["x", "y"], sort_batch_by="y")
    moved = by_column.with_input_columns(["y", "z"])
    assert moved.sort_key is not None
    assert moved.sort_key("first", "second") == "second"
    with pytest.raises(
        UdfDefinitionError, match=r"sort_batch_by='z' .* is no input.*\(x, y\), or a function"
    ):
        udf(f, data_type=pa.int8(), input_columns=["x", "y"], sort_batch_by="z")
    with pytest.raises(UdfDefinitionError, match="a call of UDF 'plain' gets one row"):
        udf(double.load(), name="plain", sort_batch_by="x")
    chunks = pa.struct([("a", pa.int8())])
    with pytest.raises(UdfDefinitionError, match="makes new rows"):
        UDF.define(
            double.load(), kind=Kind.CHUNKS, data_type=chunks, settings=Settings(batch_size=5)
        )


def test_settings_and_metadata_are_kept_and_belong_to_the_udf():
    metadata = {"owner": "me"}
    described_udf = udf(
        double.load(),
        field_metadata=metadata,
        memory=5,
        min_checkpoint_size=1,
        max_checkpoint_size=2,
        task_size=9,
    )
    metadata["owner"] = "you"
    assert described_udf.field_metadata == {"owner": "me"}
    assert (
        described_udf.memory,
        described_udf.min_checkpoint_size,
        described_udf.max_checkpoint_size,
        described_udf.task_size,
    ) == (5, 1, 2, 9)


def test_the_version_follows_code_columns_and_type_but_not_the_settings():
    def define(by: int, **options: object) -> UDF:
        return udf(lambda a: a * by, **{"data_type": pa.int64(), **options})  # type: ignore[call-overload, no-any-return]

    first = define(2)
    assert (
        first.version
        == define(2).version
        == define(2, name="other", num_cpus=3, on_error=Skip()).version
    )
    other_udfs = [
        define(3),
        define(2, data_type=pa.int32()),
        define(2, input_columns=["b"]),
        first.with_input_columns(["c"]),
    ]
    assert len({first.version, *(other_udf.version for other_udf in other_udfs)}) == 5
    assert (
        define(2, version="v").version
        == "v"
        == define(3, version="v").with_input_columns(["c"]).version
    )


def test_the_version_follows_a_helper_that_is_defined_again_and_stays_once_pickled():
    scope: dict[str, object] = {"__name__": "__main__", "udf": udf}
    exec("@udf\ndef f(a: int) -> int:\n    return helper(a)\ndef helper(x): return 1", scope)
    scope_udf = scope["f"]
    assert isinstance(scope_udf, UDF)
    before, copy = scope_udf.version, UDF.loads(scope_udf.dumps())
    exec("def helper(x): return 2", scope)
    assert scope_udf.version != before == copy.version
    assert (scope_udf(0), copy(0)) == (2, 1)


def test_a_udf_that_calls_another_one_or_itself_has_a_version():
    source = "@udf\ndef g(a: int) -> int:\n    return a + {}\n@udf\ndef f(a: int) -> int:\n    return g(a) + f(a)\n"
    versions = []
    for n in (1, 1, 2):
        scope: dict[str, object] = {"__name__": "__main__", "udf": udf}
        exec(source.format(n), scope)
        versions.append(scope["f"].version)  # type: ignore[attr-defined]
    assert versions[0] == versions[1] != versions[2]


def test_code_that_cannot_be_digested_is_an_error_at_the_definition():
    lock = threading.Lock()

    def f(a: int) -> int:
        return a if lock else 0

    with pytest.raises(
        UdfDefinitionError, match=r"UDF 'f': function .*closure variable 'lock'.*Give version="
    ):
        udf(f)
    assert udf(f, version="1").version == "1"


def test_a_udf_survives_pickling_with_its_version_and_gives_the_same_bytes_again():
    payload = add.with_input_columns(["x", "y"]).dumps()
    copy = UDF.loads(payload)
    assert (copy.name, copy.version, copy.input_columns, copy.data_type, copy.num_cpus) == (
        "add",
        "7",
        ("x", "y"),
        pa.int64(),
        2,
    )
    assert copy(1, 2) == 13
    assert copy.dumps() is payload
    assert copy.with_input_columns(["p", "q"]).dumps() != payload
    assert UDF.payload_digest(payload) == UDF.payload_digest(bytes(payload))
    assert len(UDF.payload_digest(payload)) == 64


def test_a_udf_runs_in_a_process_that_never_saw_its_module(tmp_path: Path):
    scope: dict[str, object] = {"__name__": "__main__", "udf": udf}
    exec(
        "FACTOR = 5\ndef helper(x): return x * FACTOR\n@udf\ndef f(a: int) -> int:\n    return helper(a)",
        scope,
    )
    scope_udf = scope["f"]
    assert isinstance(scope_udf, UDF)
    (tmp_path / "udf").write_bytes(scope_udf.dumps())
    script = "import sys\nfrom udf_runtime import UDF\nf = UDF.loads(open(sys.argv[1], 'rb').read())\nprint(f(3), f.version, f.kind.value)"
    process = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "udf"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert process.stdout.split() == ["15", scope_udf.version, "scalar"]


def test_bytes_that_are_no_udf_are_refused():
    for payload, reason in (
        (b"damaged", "cannot be unpickled"),
        (pickle.dumps(3), "hold a int"),
        (b"cno_such_module\nx\n.", "no_such_module"),
    ):
        with pytest.raises(UdfDefinitionError, match=reason):
            UDF.loads(payload)


def test_code_that_cannot_be_pickled_is_an_error_with_advice():
    lock = threading.Lock()
    lock_udf = udf(lambda a: a if lock else 0, data_type=pa.int8(), version="1")
    with pytest.raises(UdfDefinitionError, match=r"cannot be pickled.*setup\(\)"):
        lock_udf.dumps()


class Size(NamedTuple):
    height: int
    width: int


@udf
def size(image_id: int) -> Columns[Size]:
    return Size(image_id + 10, image_id + 20)  # type: ignore[return-value]


def test_an_unpacked_udf_names_its_columns_with_a_prefix():
    assert UnpackedUDF(size, prefix="img_").output_columns == (
        ("height", "img_height"),
        ("width", "img_width"),
    )
    assert UnpackedUDF(size).output_columns == (("height", "height"), ("width", "width"))
    assert size(1) == (11, 21)


@pytest.mark.parametrize("wrong", [(double, ""), (lambda: 1, ""), (size, 3)])
def test_only_a_udf_with_columns_can_be_unpacked(wrong: tuple[object, object]):
    with pytest.raises(UdfDefinitionError, match=r"in UnpackedUDF|argument '(udf|prefix)'"):
        UnpackedUDF(*wrong)  # type: ignore[arg-type]


def test_columns_is_no_value():
    with pytest.raises(TypeError, match="return annotation"):
        Columns()


def test_as_udf_tells_udfs_from_other_things():
    assert as_udf(double) is double
    assert as_udf(double.load()) is None
    assert as_udf("double") is None


def test_decorators_find_types_of_the_function_around_them():
    @dataclass
    class Piece:
        text: str

    @chunker
    def pieces(text: str) -> Iterator[Piece]:
        yield Piece(text)

    assert pieces.data_type == pa.struct([("text", pa.string())])


def test_a_table_function_is_decorated_with_its_schema_in_either_way():
    def rows(source: object) -> Iterator[pa.Table]:
        yield pa.table({"n": [1]})

    schema = pa.schema([("n", pa.int64())])
    called, applied = udtf(rows, output_schema=schema), udtf(output_schema=schema)(rows)
    assert called == applied and called.data_type == pa.struct(list(schema))
    with pytest.raises(UdfDefinitionError, match="output_schema=None of @udtf is no Arrow schema"):
        udtf(rows)


@pytest.mark.parametrize(
    ("data_type", "remedy"),
    [
        (pa.string_view(), r"pa\.string\(\)"),
        (pa.binary_view(), r"pa\.binary\(\)"),
        (pa.list_view(pa.int8()), r"pa\.list_\(\)"),
        (pa.large_list_view(pa.int8()), r"pa\.large_list\(\)"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "the type of its values"),
        (pa.sparse_union([pa.field("a", pa.int8())]), "a struct"),
        (pa.month_day_nano_interval(), r"pa\.duration\(\)"),
        (pa.decimal32(5, 2), r"pa\.decimal128\(\)"),
        (pa.decimal64(5, 2), r"pa\.decimal128\(\)"),
        (pa.list_(pa.int8(), 0), "one item or more"),
    ],
    ids=str,
)
def test_a_type_that_no_column_can_be_filled_with_is_refused_at_any_depth(data_type, remedy):
    for outer in (
        data_type,
        pa.list_(data_type),
        pa.struct({"f": data_type}),
        pa.map_(pa.string(), data_type),
    ):
        with pytest.raises(UdfDefinitionError, match=remedy):
            UDF.define(lambda x: None, data_type=outer, input_columns=["x"], name="f")
    with pytest.raises(UdfDefinitionError, match=remedy):
        chunker(lambda x: [], output_schema=pa.schema([("f", data_type)]))
