"""The parts of a SELECT over a single table in Spark SQL, and the checks of its expressions.

The parser knows only the necessary grammar. Spark compares the parts with the whole text afterwards
(`spark/query.py`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lance_spark.errors import RegistrationError

FULL_REFRESH = "Write its result anew: df.write.format('lance').mode('overwrite').save(path), or CREATE OR REPLACE."

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
        ("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ANTI", "SEMI", ","),
        ("a join", FULL_REFRESH),
    ),
    **dict.fromkeys(("UNION", "INTERSECT", "EXCEPT", "MINUS"), ("a set operation", FULL_REFRESH)),
    **dict.fromkeys(
        ("LIMIT", "OFFSET", "FETCH"), ("a limit", "Leave it to the queries over the view.")
    ),
    **dict.fromkeys(
        ("ORDER", "SORT", "CLUSTER", "DISTRIBUTE"),
        ("an order", "Leave it to the queries over the view."),
    ),
    **dict.fromkeys(("WINDOW", "QUALIFY"), ("a window", FULL_REFRESH)),
    **dict.fromkeys(("LATERAL", "PIVOT", "UNPIVOT"), ("a generator or pivot", FULL_REFRESH)),
    "TABLESAMPLE": ("a sample", "Select rows with WHERE."),
    "|": ("a pipe", "Write it as a SELECT."),
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
    [
        "AND",
        "OR",
        "IS",
        "IN",
        "NOT",
        "BETWEEN",
        "LIKE",
        "ILIKE",
        "RLIKE",
        "REGEXP",
        "DIV",
        "COLLATE",
    ]
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
        """The name of an identifier. A setting of Spark makes double-quoted strings identifiers."""
        quote = self.text[0]
        return (
            self.text[1:-1].replace(quote * 2, quote)
            if quote in ("`", '"') and self.kind != "sign"
            else self.text
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """A SELECT of a text.

    Attributes:
        items: The selected items, as text.
        alias: Qualifier for its columns.
        where: Condition on rows, as text.
        span: Span of the SELECT in the text.
    """

    items: tuple[str, ...]
    alias: str | None
    where: str | None
    span: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """The name of the table of a text.

    Attributes:
        parts: The parts of the name.
        span: Span of the name in the text.
        is_aliased: Whether the text gives the table another qualifier.
    """

    parts: tuple[str, ...]
    span: tuple[int, int]
    is_aliased: bool


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
    raise _refusal("a comment that does not end", text, "Close it.")


def parse(text: str) -> tuple[list[Select], TableName]:
    """Parses a SELECT over a single table. Returns all SELECTs, the innermost first, and the table.

    Raises:
        RegistrationError: The text is no SELECT, or cannot be a view.
    """
    if "${" in text:
        raise _refusal("a variable of the configuration", text, "Write its value.")
    tokens = tokens_of(text)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    parser = _Parser(text, tokens)
    table = parser.select(0, len(tokens))
    return parser.selects, table


@dataclass(slots=True)
class _Parser:
    text: str
    tokens: Sequence[Token]
    depths: list[int] = field(default_factory=list)
    selects: list[Select] = field(default_factory=list)

    def __post_init__(self) -> None:
        depth = 0
        for token in self.tokens:
            depth -= token.text in (")", "]")
            self.depths.append(depth)
            depth += token.text in ("(", "[")

    def select(self, first: int, end: int) -> TableName:
        """Adds the SELECTs of a range of tokens, and returns the table of the innermost SELECT."""
        items_at = self._items_at(first, end)
        from_at = self._from_at(items_at, end)
        items = tuple(self._items(items_at, from_at))
        if self._word(from_at + 1, end) == "(":
            close = self._close_of(from_at + 1, end)
            table = self.select(from_at + 2, close)
            alias, at = self._alias(close + 1, end)
        else:
            parts, at = self._name(from_at + 1, end)
            span = self.tokens[from_at + 1].start, self.tokens[at - 1].end
            alias, at = self._alias(at, end)
            table = TableName(parts=parts, span=span, is_aliased=alias is not None)
            alias = alias or parts[-1]
        where = self._where(at, end)
        span = self.tokens[first].start, self.tokens[end - 1].end
        self.selects.append(Select(items=items, alias=alias, where=where, span=span))
        return table

    def _items_at(self, first: int, end: int) -> int:
        if self._word(first, end) != "SELECT":
            raise _refusal(
                "something else than SELECT ... FROM one table WHERE ...",
                self.text,
                "Write nested SELECTs in place of a WITH.",
            )
        if self._word(first + 1, end) == "DISTINCT":
            raise _refusal("DISTINCT", self.text, FULL_REFRESH)
        return first + 1 + (self._word(first + 1, end) == "ALL")

    def _from_at(self, first: int, end: int) -> int:
        for i in self._outside(first, end):
            if (
                self.tokens[i].word == "FROM" and self.tokens[i - 1].word != "DISTINCT"
            ):  # IS DISTINCT FROM
                return i
        raise _refusal("no FROM", self.text, "Select from one table.")

    def _items(self, first: int, end: int) -> Iterator[str]:
        for i in self._outside(first, end):
            if self.tokens[i].text == ",":
                yield self._slice(first, i)
                first = i + 1
        yield self._slice(first, end)

    def _close_of(self, at: int, end: int) -> int:
        return next((i for i in range(at + 1, end) if self.depths[i] == self.depths[at]), end)

    def _name(self, at: int, end: int) -> tuple[tuple[str, ...], int]:
        """Returns the parts of the table's name, and the next token."""
        parts: list[str] = []
        while self._is_name(at, end):
            parts.append(self.tokens[at].name)
            at += 1
            if self._word(at, end) != ".":
                break
            at += 1
        if not parts or self._word(at, end) == "(":
            raise _refusal("no table after FROM", self.text, "Select from one table.")
        return tuple(parts), at

    def _alias(self, at: int, end: int) -> tuple[str | None, int]:
        """Returns the alias of the source, and the next token."""
        at += self._word(at, end) == "AS"
        self._refuse_clause(at, end)
        if self._word(at, end) == "WHERE" or not self._is_name(at, end):
            return None, at
        return self.tokens[at].name, at + 1

    def _where(self, at: int, end: int) -> str | None:
        """Returns the condition at the end of a SELECT."""
        if self._word(at, end) == "WHERE":
            for i in self._outside(at + 1, end):
                self._refuse_clause(i, end)
            return self._slice(at + 1, end)
        self._refuse_clause(at, end)
        if at < end:
            raise _refusal(repr(self.tokens[at].text), self.text, "Select from one table.")
        return None

    def _refuse_clause(self, at: int, end: int) -> None:
        clause = _CLAUSES.get(self._word(at, end))
        if clause is not None:
            what, instead = clause
            quote = (
                "" if self.tokens[at].kind == "sign" else " A column of this name takes backticks."
            )
            raise _refusal(f"{what} ({self.tokens[at].text})", self.text, instead + quote)

    def _outside(self, first: int, end: int) -> Iterator[int]:
        """Yields the tokens of a range outside its parentheses."""
        depth = self.depths[first] if first < end else 0
        return (i for i in range(first, end) if self.depths[i] == depth)

    def _slice(self, first: int, end: int) -> str:
        if first >= end:
            raise _refusal("an empty item", self.text, "Select columns and expressions.")
        text = self.text[self.tokens[first].start : self.tokens[end - 1].end]
        if any(token.word == "SELECT" for token in self.tokens[first:end]):
            raise _refusal("a subquery", text, FULL_REFRESH)
        return text

    def _is_name(self, at: int, end: int) -> bool:
        return at < end and self.tokens[at].kind in ("word", "name")

    def _word(self, at: int, end: int) -> str:
        return self.tokens[at].word if at < end else ""


def shorten_qualifiers(
    text: str, span: tuple[int, int], table: Sequence[str], columns: Collection[str]
) -> str:
    """Returns a text with `table.column` in place of `catalog.namespace.table.column`.

    Spark prefers the longest qualifier of a column to fields of structs. The argument of a lambda
    is no qualifier.

    Args:
        text: A text in Spark SQL.
        span: Span of the SELECT over the table in the text.
        table: The parts of the table's full name.
        columns: Names of the columns of the table.

    Raises:
        RegistrationError: An argument of a lambda hides the name of the table.
    """
    table_names, column_names = ([name.lower() for name in names] for names in (table, columns))
    tokens = [token for token in tokens_of(text) if span[0] <= token.start < span[1]]
    arguments = _lambda_arguments(tokens)
    pieces, start = list[str](), 0
    for i, token in enumerate(tokens):
        follows_dot = i > 0 and tokens[i - 1].text == "."
        length = 0 if follows_dot else _qualifier_length(tokens[i:], table_names, column_names)
        if length and token.name.lower() not in arguments[i]:
            if length > 1 and table_names[-1] in arguments[i]:
                what = f"a column of {'.'.join(table)} in a lambda with an argument {table[-1]!r}"
                raise _refusal(what, text, "Rename the argument.")
            pieces.append(text[start : token.start])
            start = tokens[i + 2 * (length - 1)].start
    return "".join((*pieces, text[start:]))


def _qualifier_length(
    tokens: Sequence[Token], table: Sequence[str], columns: Collection[str]
) -> int:
    """Returns the number of names before a column or a star, at the start of some tokens."""
    for length in range(len(table), 0, -1):
        *names, column = [token.name.lower() for token in tokens[: 2 * length + 1 : 2]]
        dots = {token.text for token in tokens[1 : 2 * length : 2]}
        if names == table[-length:] and dots == {"."} and (column in columns or column == "*"):
            return length
    return 0


def _lambda_arguments(tokens: Sequence[Token]) -> list[set[str]]:
    """Returns the names of the arguments of the lambdas around each token.

    Lambdas: `x -> x + 1`, `(x, i) -> x + i`.
    """
    names = [set[str]() for _ in tokens]
    for i, token in enumerate(tokens):
        if token.text == "->":
            first = i - 1
            while tokens[first].text in (",", ")") or tokens[first + 1].text in (",", ")"):
                first -= 1
            for inside in _body_of(tokens, i):
                names[inside].update(token.name.lower() for token in tokens[first:i])
    return names


def _body_of(tokens: Sequence[Token], arrow: int) -> range:
    """Returns the tokens of a lambda's body, up to the next argument or the end of the call."""
    depth = 0
    for i in range(arrow + 1, len(tokens)):
        depth += (tokens[i].text in ("(", "[")) - (tokens[i].text in (")", "]"))
        if depth < 0 or (depth == 0 and tokens[i].text == ","):
            return range(arrow + 1, i)
    return range(arrow + 1, len(tokens))


def starred(item: str, qualifier: str | None) -> tuple[str, ...] | None:
    """Returns the columns that an item `*` excludes, mostly none; None for other items.

    Raises:
        RegistrationError: The item has another form of a star.
    """
    tokens = tokens_of(item)
    bare_tokens = tokens if qualifier is None else _without_qualifier(tokens, qualifier.lower())
    if [token.text for token in bare_tokens[:1]] == ["*"]:
        return _excluded(bare_tokens[1:], item)
    texts = [token.text for token in tokens]
    if any(
        text == "*" and before in ("", "(", ",", ".")
        for before, text in itertools.pairwise(["", *texts])
    ):
        raise _refusal("a star inside an expression, or of a struct", item, "Name the columns.")
    return None


def _without_qualifier(tokens: Sequence[Token], qualifier: str) -> list[Token]:
    """Returns tokens with `column` in place of `qualifier.column`."""
    bare_tokens: list[Token] = []
    for token in tokens:
        if token.text == "." and [before.name.lower() for before in bare_tokens[-1:]] == [
            qualifier
        ]:
            bare_tokens.pop()
        else:
            bare_tokens.append(token)
    return bare_tokens


def _excluded(tokens: Sequence[Token], item: str) -> tuple[str, ...]:
    """Returns the names in `EXCEPT (a, b)` after a star."""
    if not tokens:
        return ()
    names, commas = tokens[2:-1:2], tokens[3:-1:2]
    is_list = all(token.kind in ("word", "name") for token in names) and all(
        token.text == "," for token in commas
    )
    if (
        len(tokens) > 2
        and is_list
        and [token.word for token in (*tokens[:2], tokens[-1])] == ["EXCEPT", "(", ")"]
    ):
        return tuple(token.name for token in names)
    raise _refusal("a star with more than EXCEPT (names)", item, "Name the columns.")


def check_expression(
    text: str, *, is_own: Callable[[str], bool], columns: Mapping[str, str]
) -> None:
    """Refuses an expression unsupported in views.

    Args:
        text: An expression in Spark SQL.
        is_own: Tells whether a function belongs to Spark.
        columns: Types of the available columns, by name in lower case.

    Raises:
        RegistrationError: The expression has a subquery, a window, a generator, a foreign function,
            or a value that does not follow from the row.
    """
    _Expression(text, tokens_of(text), is_own, columns).check()


@dataclass(frozen=True, slots=True)
class _Expression:
    text: str
    tokens: Sequence[Token]
    is_own: Callable[[str], bool]
    columns: Mapping[str, str]

    def check(self) -> None:
        """Refuses the first unsupported token."""
        has_times = self._has_times()
        for at, token in enumerate(self.tokens):
            if token.word == "SELECT" or self._begins_query(at):
                raise _refusal("a subquery", self.text, FULL_REFRESH)
            if token.word == "OVER" and self._sign(at - 1) == ")":
                raise _refusal("a window", self.text, FULL_REFRESH)
            if (has_times and _is_moment(token)) or self._is_unsteady_word(at):
                raise _unsteady(token.text, self.text)
            if self._is_call(at):
                self._check_call(at)

    def _has_times(self) -> bool:
        """Tells whether a string may become a date or a timestamp."""
        if any(re.search("date|timestamp", kind) for kind in self.columns.values()):
            return True
        return any(re.search("date|time", token.text, re.IGNORECASE) for token in self.tokens)

    def _begins_query(self, at: int) -> bool:
        """Tells whether a word begins a query without SELECT, such as `(TABLE t)`."""
        if (
            self.tokens[at].word not in _QUERIES
            or self._sign(at - 1) != "("
            or at + 1 == len(self.tokens)
        ):
            return False
        after = self.tokens[at + 1]
        is_trim = self._sign(at - 2).upper() == "TRIM"
        return (
            after.kind in ("word", "name", "string")
            and after.word not in _OPERATORS
            and not is_trim
        )

    def _is_unsteady_word(self, at: int) -> bool:
        """Tells whether a word is a function without parentheses whose value changes."""
        token = self.tokens[at]
        name = token.name.lower()
        is_unsteady = token.kind == "word" and name in _UNSTEADY_WORDS
        return is_unsteady and name not in self.columns and self._sign(at + 1) != "("

    def _is_call(self, at: int) -> bool:
        token = self.tokens[at]
        return self._sign(at + 1) == "(" and (
            token.kind in ("word", "name") or token.text.startswith('"')
        )

    def _check_call(self, at: int) -> None:
        called = self.tokens[at].name.lower()
        if called in _GENERATORS:
            raise _refusal(f"the generator {called}", self.text, FULL_REFRESH)
        if called in _UNSTEADY_CALLS or (called == "unix_timestamp" and self._sign(at + 2) == ")"):
            raise _unsteady(called, self.text)
        if called in _NOT_FUNCTIONS:
            return
        if self._sign(at - 1) == "." or not self.is_own(called):
            raise _refusal(
                f"{called!r}, which is none of Spark's own functions",
                self.text,
                "Write it with these. A UDF of udf_runtime in table.search(None).select({...}) computes in Python.",
            )

    def _sign(self, at: int) -> str:
        """Returns the text of a token; empty outside of the expression."""
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""


def _is_moment(token: Token) -> bool:
    """Tells whether a token is a string such as 'now'."""
    return token.kind == "string" and _MOMENTS.fullmatch(token.text.lstrip("rR")[1:-1]) is not None


def names_in(text: str) -> set[str]:
    """Returns all possible names of columns in an expression, in lower case."""
    return {
        token.name.lower() for token in tokens_of(text) if token.kind in ("word", "name", "string")
    }


def _refusal(what: str, text: str, instead: str) -> RegistrationError:
    return RegistrationError(
        f"A materialized view selects rows of one table, and computes columns row by row, so it cannot have {what}. "
        f"Text: {text!r}. {instead}"
    )


def _unsteady(what: str, text: str) -> RegistrationError:
    return RegistrationError(
        f"{what!r} changes its value without a change of the row's columns, so a refresh cannot find the outdated "
        f"rows. Text: {text!r}. Compute it in queries over the view."
    )
