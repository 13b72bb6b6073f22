"""The page "From Geneva", made of geneva's signatures, ours, and `lance_spark/from_geneva.json`: `python -m tests.support.from_geneva` writes it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lance_spark
from lance_spark.geneva import counterparts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "from-geneva.md"
SIGNATURES = Path(__file__).with_name("geneva_signatures.json")
START, END = "<!-- generated: from here -->\n", "<!-- generated: to here -->\n"
OURS = {
    "GenevaQueryBuilder": "Search",
    "NativeConnection": "Connection",
    "NativeTable": "Table",
}
"""Classes that have another name here."""

RETURNED = {
    "PipManifestBuilder": type(lance_spark.Manifest.create_pip("a")),
    "SiteManifestBuilder": type(lance_spark.Manifest.create_site("a")),
}
"""Classes without a public name: what functions return."""

MADE = {
    "BackfillJobResult", "ErrorRecord", "GenevaManifest", "GenevaQueryBuilder", "Job", "JobRecord", "RefreshJobResult",
    "PipManifestBuilder", "SiteManifestBuilder", "SkipThresholdExceededError", "Connection",
    "NativeConnection", "NativeTable", "Table", "TableReference", "UdfResult",
}  # fmt: skip
"""Classes whose objects the library makes, never called with parameters by users."""

NAMED = re.compile(r"`(\w+)(?:\.(\w+))?(?:\((\w+)\))?`")


@dataclass(frozen=True)
class Row:
    """A name of geneva, `Class.member(parameter)`, and what it is here; `""` where nothing is known."""

    name: str
    here: str

    @property
    def refused(self) -> bool:
        return self.here.startswith("refused: ")


def signatures() -> dict[str, dict[str, object]]:
    return json.loads(SIGNATURES.read_text(encoding="utf-8"))


def parameters(value: object) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return set()


def exists(owner: str, member: str | None = None, parameter: str | None = None) -> bool:
    """Tells whether the package has this name, as a user would write it."""
    if owner.startswith("LANCE_SPARK_"):
        return f"`{owner}`" in (ROOT / "docs" / "environment-variables.md").read_text(encoding="utf-8")
    if owner not in lance_spark.__all__ and owner not in RETURNED:
        return False
    value = RETURNED.get(owner) or getattr(lance_spark, owner)
    if member is not None:
        if not hasattr(value, member):
            # An attribute that only objects have is in the docstring of the class.
            return parameter is None and f"\n        {member}: " in f"\n{inspect.getdoc(value)}".replace(
                "\n    ", "\n        "
            )
        value = getattr(value, member)
    return parameter is None or parameter in parameters(value)


def rows() -> Iterator[Row]:
    """Yields every name of geneva, in the order of the page; members of a class that is refused follow it in one row."""
    known = counterparts()
    for name, value in signatures()["names"].items():
        ours = OURS.get(name, name)
        here = known.get(name) or (f"`{ours}`" if exists(ours) else "")
        imports = ", ".join(value["imports"])  # type: ignore[index, call-overload]
        yield Row(
            f"{name}", f"{here}; imported from {imports} there" if here and not here.startswith("refused") else here
        )
        if here.startswith("refused") or not exists(ours):
            continue
        if name.startswith("Native"):
            continue  # their members are those of Table and Connection, which they are here
        if name not in MADE:
            yield from _parameters(name, ours, None, value["parameters"])  # type: ignore[index, call-overload]
        for member, named in value.get("members", {}).items():  # type: ignore[union-attr]
            key = f"{name}.{member}"
            here = known.get(key) or (f"`{ours}.{member}`" if exists(ours, member) else "")
            yield Row(key, here)
            if here.startswith("`"):
                yield from _parameters(key, ours, member, named)
    for variable in signatures()["variables"]:
        yield Row(f"${variable}", known.get(f"${variable}", "none: Spark's settings serve, or nothing is to be set"))


def _parameters(key: str, ours: str, member: str | None, named: list[str]) -> Iterator[Row]:
    for parameter in named:
        place = f"{key}({parameter})"
        call = ours if member is None else f"{ours}.{member}"
        there = exists(ours, member, parameter)
        yield Row(place, counterparts().get(place) or (f"`{call}({parameter})`" if there else ""))


def table() -> str:
    lines = ["| geneva 0.17 | here |", "| --- | --- |"]
    lines += [f"| `{row.name}` | {row.here} |" for row in rows()]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Returns the page with its table as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
