"""The parts of a SELECT over a single table in Spark SQL, and the checks of its expressions.

The parser knows only the necessary grammar. Spark compares the parts with the whole text afterwards
(`spark/query.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lance_spark.errors import RegistrationError

FULL_REFRESH = "write its result anew: df.write.format('lance').mode('overwrite').save(path), or CREATE OR REPLACE"

_TOKENS = re.compile(
    r"""
    (?P<space>\s+|--(?:\\\n|[^\r\n])*)
    |(?P<comment>/\*)
    |(?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<word>[^\W\d]\w*|[0-9]+(?:\.[0-9]*)?\w*)
    |(?P<sign>->|=>|::|.)
    """,
    re.VERBOSE | re.DOTALL,
)

_CLAUSES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("GROUP", "HAVING"), ("aggregates", FULL_REFRESH)),
    **dict.fromkeys(
        ("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ANTI", "SEMI", ","), ("a join", FULL_REFRESH)
    ),
    **dict.fromkeys(("UNION", "INTERSECT", "EXCEPT", "MINUS"), ("a set operation", FULL_REFRESH)),
    **dict.fromkeys(("LIMIT", "OFFSET", "FETCH"), ("a limit", "leave it to the queries over the view")),
    **dict.fromkeys(("ORDER", "SORT", "CLUSTER", "DISTRIBUTE"), ("an order", "leave it to the queries over the view")),
    **dict.fromkeys(("WINDOW", "QUALIFY"), ("a window", FULL_REFRESH)),
    **dict.fromkeys(("LATERAL", "PIVOT", "UNPIVOT"), ("a generator or pivot", FULL_REFRESH)),
    "TABLESAMPLE": ("a sample", "select rows with WHERE"),
    "|": ("a pipe", "write it as a SELECT"),
}
"""Clauses after a table or a condition, with the alternative."""


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


_NOT_FUNCTIONS = _words(
    "and or not in between like ilike rlike regexp any some all is when then else case as interval on struct array map "
    "char varchar character decimal dec numeric string timestamp_ntz timestamp_ltz time except escape div filter "
    "extract trim both leading trailing from for over values exists cast try_cast position overlay placing"
)
"""Words before a parenthesis that are no calls, or have their own grammar."""

_UNSTEADY_WORDS = _words(
    "current_date current_time current_timestamp localtime localtimestamp current_user session_user user "
    "current_catalog current_database current_schema current_path"
)

_UNSTEADY_CALLS = _UNSTEADY_WORDS | _words(
    "rand randn random randstr uniform uuid shuffle monotonically_increasing_id spark_partition_id input_file_name "
    "input_file_block_start input_file_block_length java_method reflect try_reflect now curdate current_timezone "
    "version aes_encrypt"
)
"""Functions whose value depends on more than their arguments. `aes_encrypt` draws a vector."""

_GENERATORS = _words(
    "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple sql_keywords collations "
    "variant_explode variant_explode_outer window session_window window_time"
)

_QUERIES = frozenset(("TABLE", "FROM", "MAP", "REDUCE", "WITH", "VALUES"))
_OPERATORS = frozenset(
    ["AND", "OR", "IS", "IN", "NOT", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "DIV", "COLLATE"]
)
"""Words after a column. A word of `_QUERIES` before them is the name of a column."""

_MOMENTS = re.compile(r"\s*(now|today|tomorrow|yesterday)\b.*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, quoted name, string, or sign of a text."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The word or sign in upper case; empty for a quoted name or a string."""
        return self.text.upper() if self.kind in ("word", "sign") else ""

    @property
    def name(self) -> str:
        """The name of an identifier."""
        return self.text[1:-1].replace("``", "`") if self.kind == "name" else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """A SELECT of a text.

    Attributes:
        items: The selected items, as text.
        source: The source: the parts of a table's name, or another SELECT.
        span: Span of the name in the text.
        alias: Qualifier for its columns.
    """

    items: tuple[str, ...]
    source: tuple[str, ...] | Select
    span: tuple[int, int]
    alias: str | None
    where: str | None


def tokens_of(text: str) -> list[Token]:
    """Returns the tokens of a text in Spark SQL, without comments."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        assert match is not None  # any character is a sign
        kind = str(match.lastgroup)
        at = _after_comment(text, at) if kind == "comment" else match.end()
        if kind not in ("space", "comment"):
            tokens.append(Token(kind, match[0], match.start(), at))
    return tokens


def _after_comment(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    raise _refusal("a comment that does not end", text, "close it")


def parse(text: str) -> Select:
    """Parses a SELECT over a single table.

    Raises:
        RegistrationError: The text is no SELECT, or cannot be a view.
    """
    if "${" in text:
        raise _refusal("a variable of the configuration", text, "write its value")
    tokens = tokens_of(text)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    return _Parser(text, tokens).select(0, len(tokens))


@dataclass(slots=True)
class _Parser:
    text: str
    tokens: Sequence[Token]
    depths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        depth = 0
        for token in self.tokens:
            depth -= token.text in (")", "]")
            self.depths.append(depth)
            depth += token.text in ("(", "[")

    def select(self, first: int, end: int) -> Select:
        """Returns the SELECT of a range of tokens."""
        if self._word(first, end) != "SELECT":
            raise _refusal(
                "something else than SELECT ... FROM one table WHERE ...", self.text, "write nested SELECTs for a WITH"
            )
        if self._word(first + 1, end) == "DISTINCT":
            raise _refusal("DISTINCT", self.text, FULL_REFRESH)
        begin = first + 1 + (self._word(first + 1, end) == "ALL")
        at = next(
            (
                i
                for i in self._outside(begin, end)
                if self.tokens[i].word == "FROM" and self.tokens[i - 1].word != "DISTINCT"
            ),
            end,
        )
        if at == end:
            raise _refusal("no FROM", self.text, "select from one table")
        items = tuple(self._parts(begin, at))
        source, span, at = self._source(at + 1, end)
        alias = source[-1] if isinstance(source, tuple) else None
        at += self._word(at, end) == "AS"
        self._refuse_clause(at, end)
        if at < end and self._word(at, end) != "WHERE" and self.tokens[at].kind in ("word", "name"):
            alias = self.tokens[at].name
            at += 1
        where = None
        if self._word(at, end) == "WHERE":
            for i in self._outside(at + 1, end):
                self._refuse_clause(i, end)
            where, at = self._slice(at + 1, end), end
        self._refuse_clause(at, end)
        if at < end:
            raise _refusal(repr(self.tokens[at].text), self.text, "select from one table")
        return Select(items=items, source=source, span=span, alias=alias, where=where)

    def _source(self, at: int, end: int) -> tuple[tuple[str, ...] | Select, tuple[int, int], int]:
        """Returns the source at a token, the span of its name, and the next token."""
        if self._word(at, end) == "(":
            close = next((i for i in range(at + 1, end) if self.depths[i] == self.depths[at] and i > at), end)
            inner = self.select(at + 1, close)
            return inner, inner.span, close + 1
        parts: list[str] = []
        first = at
        while at < end and self.tokens[at].kind in ("word", "name"):
            parts.append(self.tokens[at].name)
            at += 1
            if self._word(at, end) != ".":
                break
            at += 1
        if not parts or self._word(at, end) == "(":
            raise _refusal("no table after FROM", self.text, "select from one table")
        return tuple(parts), (self.tokens[first].start, self.tokens[at - 1].end), at

    def _refuse_clause(self, at: int, end: int) -> None:
        clause = _CLAUSES.get(self._word(at, end))
        if clause is not None:
            what, instead = clause
            quote = "" if self.tokens[at].kind == "sign" else "; a column of this name takes backticks"
            raise _refusal(f"{what} ({self.tokens[at].text})", self.text, instead + quote)

    def _outside(self, first: int, end: int) -> Iterator[int]:
        depth = self.depths[first] if first < end else 0
        return (i for i in range(first, end) if self.depths[i] == depth)

    def _parts(self, first: int, end: int) -> Iterator[str]:
        for i in self._outside(first, end):
            if self.tokens[i].text == ",":
                yield self._slice(first, i)
                first = i + 1
        yield self._slice(first, end)

    def _slice(self, first: int, end: int) -> str:
        if first >= end:
            raise _refusal("an empty item", self.text, "select columns and expressions")
        text = self.text[self.tokens[first].start : self.tokens[end - 1].end]
        if any(token.word == "SELECT" for token in self.tokens[first:end]):
            raise _refusal("a subquery", text, FULL_REFRESH)
        return text

    def _word(self, at: int, end: int) -> str:
        return self.tokens[at].word if at < end else ""


def starred(item: str, qualifiers: Collection[str]) -> tuple[str, ...] | None:
    """Returns the columns that an item `*` excludes, mostly none; None for other items.

    Raises:
        RegistrationError: The item has another form of a star.
    """
    tokens = tokens_of(item)
    star = [token.text for token in tokens[:1]] == ["*"]
    qualifier_names = {name.lower() for name in qualifiers}
    if (
        [t.text for t in tokens[1:3]] == [".", "*"]
        and tokens[0].kind != "sign"
        and tokens[0].name.lower() in qualifier_names
    ):
        tokens, star = tokens[2:], True
    if not star:
        for before, token in zip(["", *(t.text for t in tokens)], tokens, strict=False):
            if token.text == "*" and before in ("", "(", ",", "."):
                raise _refusal("a star inside an expression, or of a struct", item, "name the columns")
        return None
    rest = tokens[1:]
    if not rest:
        return ()
    if len(rest) > 2 and rest[0].word == "EXCEPT" and (rest[1].text, rest[-1].text) == ("(", ")"):
        names = rest[2:-1:2]
        if all(token.kind in ("word", "name") for token in names) and all(t.text == "," for t in rest[3:-1:2]):
            return tuple(token.name for token in names)
    raise _refusal("a star with more than EXCEPT (names)", item, "name the columns")


def check_expression(text: str, *, is_own: Callable[[str], bool], columns: Mapping[str, str]) -> None:
    """Refuses an expression unsupported in views.

    Args:
        text: An expression in Spark SQL.
        is_own: Tells whether a function belongs to Spark.
        columns: Types of the available columns, by name in lower case.

    Raises:
        RegistrationError: The expression has a subquery, a window, a generator, a foreign function,
            or a value that does not follow from the row.
    """
    tokens = tokens_of(text)
    dates = any("date" in kind or "timestamp" in kind for kind in columns.values())
    dates = dates or any(re.search("date|timestamp|time", token.text, re.IGNORECASE) for token in tokens)
    for i, token in enumerate(tokens):
        after = tokens[i + 1].text if i + 1 < len(tokens) else ""
        name = token.name.lower()
        if token.word == "SELECT" or _begins_query(tokens, i):
            raise _refusal("a subquery", text, FULL_REFRESH)
        if token.word == "OVER" and i and tokens[i - 1].text == ")":
            raise _refusal("a window", text, FULL_REFRESH)
        if token.kind == "string" and dates and _MOMENTS.fullmatch(token.text.lstrip("rR")[1:-1]):
            raise _unsteady(token.text, text)
        if token.kind == "word" and name in _UNSTEADY_WORDS and after != "(" and name not in columns:
            raise _unsteady(token.text, text)
        if after == "(" and (token.kind in ("word", "name") or token.text.startswith('"')):
            called = name.strip('"')
            qualified = i > 0 and tokens[i - 1].text == "."
            _check_call(called, tokens[i + 2].text if i + 2 < len(tokens) else "", text, is_own, qualified)


def _begins_query(tokens: Sequence[Token], at: int) -> bool:
    """Tells whether a word begins a query without SELECT, such as `(TABLE t)`."""
    if tokens[at].word not in _QUERIES or at == 0 or tokens[at - 1].text != "(" or at + 1 == len(tokens):
        return False
    after = tokens[at + 1]
    is_trim = at > 1 and tokens[at - 2].word == "TRIM"
    return after.kind in ("word", "name", "string") and after.word not in _OPERATORS and not is_trim


def _check_call(called: str, argument: str, text: str, is_own: Callable[[str], bool], qualified: bool) -> None:
    if called in _GENERATORS:
        raise _refusal(f"the generator {called}", text, FULL_REFRESH)
    if called in _UNSTEADY_CALLS or (called == "unix_timestamp" and argument == ")"):
        raise _unsteady(called, text)
    if called not in _NOT_FUNCTIONS and (qualified or not is_own(called)):
        raise _refusal(
            f"{called!r}, which is none of Spark's own functions,",
            text,
            "write it with these; what Python computes is a column of table.search(None).select({...}) with a UDF of "
            "udf_runtime",
        )


def names_in(text: str) -> set[str]:
    """Returns all possible names of columns in an expression, in lower case."""
    return {token.name.lower() for token in tokens_of(text) if token.kind in ("word", "name", "string")}


def _refusal(what: str, text: str, instead: str) -> RegistrationError:
    return RegistrationError(
        f"a materialized view selects rows of one table, and computes columns row by row, so it cannot have {what} "
        f"- in {text!r} - {instead}"
    )


def _unsteady(what: str, text: str) -> RegistrationError:
    return RegistrationError(
        f"{what!r} has other values without any change of the row's columns, so no refresh could tell which rows are "
        f"out of date - in {text!r} - compute it in queries over the view"
    )
