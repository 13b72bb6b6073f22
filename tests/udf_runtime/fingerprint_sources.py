"""Sources of functions whose digests tests compare, in this process and in others."""

from __future__ import annotations

import textwrap

from udf_runtime.fingerprint import fingerprint


def notebook(source: str, **names: object) -> dict[str, object]:
    """Runs code as a notebook does: its functions belong to a module without a file."""
    scope: dict[str, object] = {"__name__": "__main__", **names}
    exec(compile(textwrap.dedent(source), "<cell>", "exec", dont_inherit=True), scope)
    return scope


def digest(source: str, **names: object) -> str:
    """Returns the digest of the function `f` of a source."""
    return fingerprint(notebook(source, **names)["f"])


EVERYTHING = """
import collections, dataclasses, decimal, enum, functools, logging, re, typing
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.compute as pc

class Color(enum.Enum):
    RED = frozenset({"x", "y", "z"})

class Pair(typing.NamedTuple):
    a: int
    b: str = "q"

@dataclasses.dataclass(frozen=True)
class Point:
    x: int = 3
    tags: list = dataclasses.field(default_factory=list)

class Base:
    __slots__ = ("m",)
    def __init__(self, m): self.m = m
    def __call__(self, x): return len(super().__repr__())
    @property
    def p(self): return 1
    @staticmethod
    def s(): return Base

class Model(Base):
    @functools.cached_property
    def weights(self): return helper(1)
    @classmethod
    def make(cls): return {"a", "b"}

@functools.lru_cache(maxsize=9)
def cached(x): return x
def traced(func):
    @functools.wraps(func)
    def inner(*args): return func(*args)
    return inner
@traced
def helper(x): return other(x) if x else 0
def other(x): return helper(x - 1)
WORDS = {"a", "b", (1, "q"), frozenset({"k", "l"}), Color.RED, Pair(1, "z"), str.upper}
TABLE = {word: i for i, word in enumerate(["p", "q", "r"])}
DATA = [np.arange(3), pa.table({"a": ["x", None]}), pd.DataFrame({"a": [1]}), decimal.Decimal("1.2"), re.compile("a+"),
        collections.OrderedDict(a=1), functools.partial(helper, 3), Point(4), Pair, "abc".upper, int | str, object(), np.sqrt]
DATA.append(DATA)
log = logging.getLogger("x")

def f(x, y=Pair(1, "b"), *, k={"a", "b"}):
    if x in {"a", "b", "c"}:
        return pc.add(x, 1), np.sqrt(x), [helper(i) for i in WORDS]
    return cached(x), Model("m"), TABLE, DATA, log, Color.RED, lambda z: z + other(z)
"""

PYDANTIC = """
import enum, functools
from typing import Annotated, ClassVar, Generic, Literal, Optional, TypeVar
import pydantic

class Kind(enum.StrEnum):
    A = "a"
    B = "b"
    @classmethod
    def _missing_(cls, value): return cls.A

class Inner(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(min_length=1)]
    tags: set[str] = {"p", "q"}

T = TypeVar("T")
class Box(pydantic.BaseModel, Generic[T]):
    item: T

@pydantic.dataclasses.dataclass
class Pair:
    a: int = 1

@pydantic.validate_call
def repeat(a: int, b: str = "q") -> str: return b * a

class Answer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    label: Literal["x", "y"]
    score: float = pydantic.Field(0.0, ge=0, alias="s")
    inner: Optional[Inner] = None
    many: list["Answer"] = pydantic.Field(default_factory=list)
    kind: Kind = Kind.A
    box: Box[int] | None = None
    pair: Pair = Pair()
    limit: ClassVar[int] = 4
    _private: int = pydantic.PrivateAttr(3)
    @pydantic.field_validator("label", mode="before")
    @classmethod
    def lower(cls, value): return value.lower()
    @pydantic.computed_field
    @property
    def double(self) -> float: return self.score * 2

ADAPTER = pydantic.TypeAdapter(list[Answer])
DEFAULT = Answer(label="x")

def f(text):
    return Answer.model_validate_json(text) or ADAPTER or repeat(1) or DEFAULT
"""
"""A UDF with a parser of pydantic models."""

PYDANTIC_CHANGES = [
    ('B = "b"', 'B = "c"'),
    ("return cls.A", "return cls.B"),
    ("min_length=1", "min_length=2"),
    ('{"p", "q"}', '{"p", "r"}'),
    ("    item: T", "    item: T | None"),
    ("    a: int = 1", "    a: int = 2"),
    ("repeat(a: int", "repeat(a: float"),
    ('extra="forbid"', 'extra="ignore"'),
    ('Literal["x", "y"]', 'Literal["x", "z"]'),
    ("ge=0", "ge=1"),
    ('alias="s"', 'alias="t"'),
    ("default_factory=list", "default_factory=lambda: []"),
    ("Box[int]", "Box[str]"),
    ("ClassVar[int] = 4", "ClassVar[int] = 5"),
    ("PrivateAttr(3)", "PrivateAttr(4)"),
    ('mode="before"', 'mode="after"'),
    ("value.lower()", "value.lower().strip()"),
    ("self.score * 2", "self.score * 3"),
    ("list[Answer])", "set[Answer])"),
    ('label="x")', 'label="y")'),
]

ATTRS = """
import attr, attrs

@attrs.define
class Point:
    x: int
    tags: list[str] = attrs.field(factory=list, converter=list, metadata={"unit": "cm"})
    @tags.validator
    def check(self, attribute, value): return None

@attrs.frozen
class Line:
    start: Point = Point(1)

@attr.s(auto_attribs=True, hash=True, order=True)
class Old:
    a: int = 1

DEFAULT = Line()

def f(x): return Point(x), Line(), Old(), DEFAULT
"""
"""A UDF with classes of attrs."""

ATTRS_CHANGES = [
    ("converter=list", "converter=tuple"),
    ('"cm"', '"mm"'),
    ("return None", "return 1"),
    ("Point(1)\n\n@attr.s", "Point(2)\n\n@attr.s"),
    ("a: int = 1", "a: int = 2"),
    ("order=True", "order=False"),
]

DATACLASSES = """
import abc, dataclasses, typing

T = typing.TypeVar("T")

@dataclasses.dataclass(slots=True, kw_only=True)
class Point:
    x: int = 1
    tags: list[str] = dataclasses.field(default_factory=lambda: ["a"])
    words: frozenset[str] = frozenset({"p", "q", "r"})
    def __post_init__(self): self.x += 1

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

@dataclasses.dataclass(order=True, unsafe_hash=True)
class Box(Shape, typing.Generic[T]):
    side: T
    note: str = dataclasses.field(default="", compare=False, metadata={"unit": "cm"})
    scale: dataclasses.InitVar[int] = 1
    def area(self): return self.side * self.side

@dataclasses.dataclass
class Tall(Box[int]):
    height: int = 2

isinstance(Tall(3), Shape)

def f(x): return Tall(x), Point(x=x), dataclasses.asdict(Point())
"""
"""A UDF with dataclasses: with slots, generic, abstract and inherited."""

DATACLASS_CHANGES = [
    ("kw_only=True", "kw_only=False"),
    ("x: int = 1", "x: int = 2"),
    ('["a"]', '["b"]'),
    ('"q", "r"', '"q", "s"'),
    ("self.x += 1", "self.x += 2"),
    ("order=True", "order=False"),
    ("compare=False", "compare=True"),
    ('"cm"', '"mm"'),
    ("InitVar[int] = 1", "InitVar[int] = 2"),
    ("self.side * self.side", "self.side * 2"),
    ("height: int = 2", "height: int = 3"),
    ("height: int = 2", "tall: int = 2"),
]


def all_digests() -> dict[str, str]:
    """Returns the digests of all sources whose packages this environment has."""
    digests = {"everything": digest(EVERYTHING), "dataclasses": digest(DATACLASSES)}
    for name, source in {"pydantic": PYDANTIC, "attrs": ATTRS}.items():
        try:
            digests[name] = digest(source)
        except ModuleNotFoundError:
            continue
    return digests


if __name__ == "__main__":
    import json

    print(json.dumps(all_digests()))
