"""Ingests rows of a program into a Lance table: `python -m benchmarks.ingest_child CHECKOUT|-
SCALE`.

Answers questions, a line of JSON each, until its input ends. CHECKOUT is the folder of a
lance-spark checkout. `-` measures
PyArrow and pylance alone, without value checks.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

ROWS = 300_000
VECTORS = 20_000
SIZE = 384

Timed = Callable[[], object]
UDF_RESULTS = "results of a UDF: "


def main() -> None:
    """Lists the cases, and times requested cases."""
    # Libraries print to standard output. The answers use a separate descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    checkout, scale = sys.argv[1], float(sys.argv[2])
    if checkout != "-":
        sys.path.insert(0, checkout)
    cases = {} if checkout == "-" else results(scale)
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        writers = _PyArrow(folder) if checkout == "-" else _LanceSpark(folder)
        for name, (data, schema) in tables(scale).items():
            for kind, make in writers.cases().items():
                cases[f"{kind}: {name}"] = make(data, schema)
        print(json.dumps(list(cases)), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(timed(cases[json.loads(line)["case"]])), file=answers, flush=True)


def timed(act: Timed) -> dict[str, float]:
    """Returns the seconds of a call, and the processor seconds of all threads."""
    began, spent = time.perf_counter(), time.process_time()
    act()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - spent}


def tables(scale: float) -> dict[str, tuple[Any, pa.Schema]]:
    """Returns rows in each form, with the declared schema."""
    rows, vectors = int(ROWS * scale), int(VECTORS * scale)
    random = np.random.default_rng(1)
    texts = [f"product number {number} of a shop" for number in range(rows)]
    gaps = [None if number % 10 == 0 else text for number, text in enumerate(texts)]
    ids, prices = np.arange(rows), random.standard_normal(rows)
    single = random.standard_normal((vectors, SIZE), dtype=np.float32)
    text = pa.schema([("id", pa.int64()), ("text", pa.string())])
    number = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.float64()),
            ("short", pa.float32()),
            ("at", pa.timestamp("us")),
        ]
    )
    vector = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), SIZE))])
    moments = pd.date_range("2020-01-01", periods=rows, freq="s")
    few = rows // 4
    return {
        "pandas text": (pd.DataFrame({"id": ids, "text": pd.Series(texts, dtype=object)}), text),
        "pandas text with gaps": (pd.DataFrame({"id": ids, "text": pd.Series(gaps, dtype=object)}), text),
        "pandas numbers": (pd.DataFrame({"id": ids, "price": prices, "short": prices, "at": moments}), number),
        "pandas vectors": (pd.DataFrame({"id": np.arange(vectors), "v": list(single)}), vector),
        "pandas vectors of 64 bits": (
            pd.DataFrame({"id": np.arange(vectors), "v": list(single.astype(np.float64))}),
            vector,
        ),
        "lists of text": ({"id": ids.tolist(), "text": texts}, text),
        "lists of numbers": (
            {"id": ids.tolist(), "price": prices.tolist(), "short": prices.tolist(), "at": moments.to_pydatetime().tolist()},
            number,
        ),
        "NumPy vectors": ({"id": np.arange(vectors), "v": list(single)}, vector),
        "lists of vectors": ({"id": list(range(vectors // 4)), "v": single[: vectors // 4].tolist()}, vector),
        "dicts": (
            [{"id": number, "text": some} for number, some in zip(ids[:few].tolist(), texts[:few], strict=True)],
            text,
        ),
        "Arrow text": (pa.table({"id": ids, "text": pa.array(texts)}), text),
        "Arrow vectors": (
            pa.table({"id": np.arange(vectors), "v": pa.FixedSizeListArray.from_arrays(single.ravel(), SIZE)}),
            vector,
        ),
    }  # fmt: skip


class _PyArrow:
    """Converts and writes with PyArrow and pylance."""

    def __init__(self, folder: str) -> None:
        self._uri = f"{folder}/t.lance"

    def cases(self) -> dict[str, Callable[[Any, pa.Schema], Timed]]:
        return {"conversion": self._conversion, "create_table": self._create, "add": self._add}

    def _conversion(self, data: Any, schema: pa.Schema) -> Timed:
        return lambda: self._table(data, schema)

    def _create(self, data: Any, schema: pa.Schema) -> Timed:
        import lance

        return lambda: lance.write_dataset(self._table(data, schema), self._uri, mode="overwrite")

    def _add(self, data: Any, schema: pa.Schema) -> Timed:
        import lance

        def add() -> None:
            lance.write_dataset(schema.empty_table(), self._uri, mode="overwrite")
            lance.write_dataset(self._table(data, schema), self._uri, mode="append")

        return add

    def _table(self, data: Any, schema: pa.Schema) -> pa.Table:
        if isinstance(data, pa.Table):
            return data.cast(schema)
        if isinstance(data, pd.DataFrame):
            return pa.Table.from_pandas(data, schema=schema, preserve_index=False)
        if isinstance(data, dict):
            return pa.Table.from_pydict(data, schema=schema)
        return pa.Table.from_pylist(data, schema=schema)


class _LanceSpark:
    """Converts and writes with lance-spark."""

    def __init__(self, folder: str) -> None:
        import lance_spark

        self._folder = folder
        self._db = lance_spark.connect(folder, progress=False)

    def cases(self) -> dict[str, Callable[[Any, pa.Schema], Timed]]:
        return {"conversion": self._conversion, "create_table": self._create, "add": self._add}

    def _conversion(self, data: Any, schema: pa.Schema) -> Timed:
        from lance_spark.ingest.rows import to_reader

        return lambda: to_reader(data, schema).read_all()

    def _create(self, data: Any, schema: pa.Schema) -> Timed:
        return lambda: self._db.create_table("t", data, schema=schema, mode="overwrite")

    def _add(self, data: Any, schema: pa.Schema) -> Timed:
        def add() -> None:
            shutil.rmtree(f"{self._folder}/added.lance", ignore_errors=True)
            self._db.create_table("added", schema=schema).add(data)

        return add


def results(scale: float) -> dict[str, Timed]:
    """Returns conversions of UDF results: a value per row, or a batch."""
    from udf_runtime.execute.conversion.outputs import Output

    rows, vectors = int(ROWS * scale), int(VECTORS * scale)
    random = np.random.default_rng(1)
    single = random.standard_normal((vectors, SIZE), dtype=np.float32)
    double = single.astype(np.float64)
    texts, numbers = (
        [f"product number {number} of a shop" for number in range(rows)],
        list(range(rows)),
    )
    floats = random.standard_normal(rows)
    vector = pa.list_(pa.float32(), SIZE)
    pair = pa.struct([("id", pa.int64()), ("text", pa.string())])
    pairs = [{"id": number, "text": text} for number, text in zip(numbers, texts, strict=True)]
    by_row: dict[str, tuple[pa.DataType, list[Any]]] = {
        "integers": (pa.int64(), numbers),
        "floats": (pa.float64(), floats.tolist()),
        "floats of 32 bits": (pa.float32(), floats.tolist()),
        "text": (pa.string(), texts),
        "structs": (pair, pairs),
        "lists of text": (pa.list_(pa.string()), [text.split() for text in texts[: rows // 4]]),
        "vectors": (vector, list(single)),
        "vectors of 64 bits": (vector, list(double)),
        "vectors as lists": (vector, single[: vectors // 4].tolist()),
    }
    by_batch: dict[str, tuple[pa.DataType, Any, bool]] = {
        "pandas text": (pa.string(), pd.Series(texts, dtype=object), True),
        "pandas floats": (pa.float64(), pd.Series(floats), True),
        "pandas vectors": (vector, pd.Series(list(single)), True),
        "NumPy vectors": (vector, single, False),
        "NumPy vectors of 64 bits": (vector, double, False),
        "Arrow text": (pa.string(), pa.array(texts), False),
    }
    cases: dict[str, Timed] = {}
    for name, (kind, values) in by_row.items():
        output = Output("f", kind, is_columns=False, nan_is_null=False)
        cases[f"{UDF_RESULTS}{name}"] = lambda output=output, values=values: output.from_rows(
            values
        )  # type: ignore[misc]
    for name, (kind, batch, nan_is_null) in by_batch.items():
        output = Output("f", kind, is_columns=False, nan_is_null=nan_is_null)
        cases[f"{UDF_RESULTS}batches of {name}"] = (  # type: ignore[misc]
            lambda output=output, batch=batch: output.from_batch(batch, len(batch))
        )
    return cases


if __name__ == "__main__":
    main()
