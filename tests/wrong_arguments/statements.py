"""SQL statements with one wrong part: a name, a type, a literal, an option or an argument of a procedure.

Each template contains its parts by kind, as `{column}`. A statement has a right text for every part but one. Statements
read and change a table `t`, written as `{t}`, and change nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from lance_spark.options.io_options import ReadOptions, WriteOptions
from lance_spark.read.ranking.functions import (
    _OF_BOTH,
    _OF_READS,
    _OF_TEXTS,
    _OF_VECTORS,
    FUNCTIONS,
)
from lance_spark.sql.procedures.calls import PROCEDURES

_LONG = "x" * 300

NAMES = [
    "``", "`*`", "`a.b`", "`a/b`", "`é`", "`_x`", "`.x`", "`..`", "` x `", "`a``b`", "`\u200b`", "1", "NULL", "'id'", "`" + _LONG + "`", "`_rowid`",
    "`_rowaddr`", "`x y`", "`a\tb`", "`a\\b`", "`__row_operation`", "ID", "id", "`%s{0}`", "`--`",
]  # fmt: skip

LITERALS = [
    "NULL", "true", "-1", "0", "2", "1e300", "1e400", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "2147483648",
    "'text'", "''", "' '", "'-1'", "'9999999999999999999999'", "'nope'", "'work'", "'first'", "X'00FF'", "DATE'0001-01-01'",
    "TIMESTAMP'9999-12-31 23:59:59.999999'", "INTERVAL 1 DAY", "INTERVAL '1' MONTH", "array()", "array('a')", "array(NULL)", "array(1, 2)",
    "array(1e39, 1e39)", "map('a', 1)", "map()", "named_struct('a', 1)", "1.5BD", "CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS FLOAT)",
    "CAST(NULL AS STRING)", "CAST(NULL AS INT)", "current_user()", "rand()", "(SELECT 1)", "(SELECT id FROM {t})", "nope", "id", "'\\u0000'",
    "'\\ud800'", "repeat('x', 100000)", "'; DROP TABLE lance.t; --'", "'../..'", "'/nowhere/x.lance'", "'db://x'", "'nosuchscheme://x/y'", "1/0",
    "raise_error('x')", "?", ":x", "parse_json('{}')", "'é'", "'${HOME}'", "repeat('(', 2000)", "'id > '", "'id'", "'vector'", "'lance.t'",
]  # fmt: skip

WRONG: Mapping[str, list[str]] = {
    "table": [
        "lance.no_table", "lance.a.b.c.d", "lance.{bare}.versions", "lance.{bare}.nope", "nocatalog.t", "no_table", "lance.system.tag", "lance.v", "lance",
        *(f"lance.{name}" for name in NAMES), "lance.`../x`", "lance.`/`", "lance.`/nowhere`", "lance.`/nowhere/x.lance`", "lance.`s3:/x`",
        "lance.`db://x`", "lance.`nosuch://x/y`", "lance.`{bare}.lance`", "lance.`a\\u0000b`", "(SELECT 1)", "range(3)",
    ],
    "column": ["nope", *NAMES, "id.x", "vector.x", "vector.element", "text.a.b", "sum(id)", "*", "t.id", "(SELECT 1)", "vector[0]", "id, id", ""],
    "name": NAMES,
    "type": [
        "VOID", "NOTYPE", "DECIMAL(39, 2)", "DECIMAL(5, 9)", "DECIMAL(-1)", "CHAR(0)", "CHAR(3)", "VARCHAR(-1)", "STRING COLLATE UNICODE",
        "STRING COLLATE NOPE", "ARRAY<VOID>", "ARRAY", "MAP<ARRAY<INT>, INT>", "MAP<MAP<INT, INT>, INT>", "STRUCT<>", "STRUCT<a: INT, a: INT>",
        "STRUCT<`a.b`: INT>", "STRUCT<``: INT>", "INTERVAL", "INTERVAL YEAR", "INTERVAL DAY TO MONTH", "VARIANT", "OBJECT", "TIMESTAMP_NTZ", "BINARY(5)",
        "INT NOT NULL", "INT DEFAULT 5", "INT GENERATED ALWAYS AS (id)", "INT PRIMARY KEY", "TIME(9)", "TIME(-1)", "GEOMETRY(4326)", "GEOGRAPHY(ANY)",
        "NULL", "1", "'INT'", "INT FIRST", "INT AFTER nope", "INT COMMENT NULL", "TINYINT", "STRING", "ARRAY<INT>",
    ],
    "literal": LITERALS,
    "condition": [
        "nope > 1", "id", "1", "NULL", "'x'", "id = 'a'", "id = array(1)", "id IN (SELECT nope FROM {t})", "id IN (SELECT id, id FROM {t})",
        "EXISTS (SELECT 1)", "rand() > 0.5", "sum(id) > 1", "row_number() OVER (ORDER BY id) = 1", "vector = 1", "id > 1e400", "id LIKE 1",
        "_rowid < 'a'", "_rowaddr = -1", "1/0 = 1", "id = NULL", "true", "text RLIKE '('", "explode(array(1))", "(", "nosuch(id)",
        "id > 99999999999999999999999", "lance.t.id > 1", "text = 5", "vector[9] > 1", "id = (SELECT id FROM {t})", "raise_error('x')", "",
        "text = X'00'", "id = DATE'2020-01-01'", "text LIKE '%\\\\'", "id BETWEEN 'a' AND array()", "map('a', 1) = map('a', 1)",
    ],
    "text": ["''", "NULL", "1", "X'00'", "'\\u0000'", "'é'", "array('a')", f"'{_LONG * 40}'", "nope", "true", "'\\ud800'"],
    "key": [
        "''", "' '", "1", "NULL", "a.b.c", "'lance-spark.x'", "'__lance'", "'__lance_spark'", "'id.lance.encoding'", "'nope.lance.encoding'", "'provider'",
        "'location'", "'owner'", "'external'", "'comment'", "'max_rows_per_file'", "'mode'", "'storage.x'", "'storage.aws_access_key_id'",
        "'file_format_version'", "'data_storage_version'", "'enable_stable_row_ids'", "'vector.arrow.fixed-size-list.size'", "'id.arrow.float16'",
        "'id.lance.compression'", "'id.lance.compression-level'", "'option.x'", "'x\\u0000'", "'é'", "'branch'", f"'{_LONG}'", "'lancespark.table'",
    ],
    "option": [
        *(f"'{option_field.name}' = 'x'" for option_field in (*fields(ReadOptions), *fields(WriteOptions))), "'nope' = 'x'", "'' = 'x'", "nope", "'k' = NULL", "'k' = array(1)",
        "'version' = '-1'", "'version' = '99'", "'version' = 'nope'", "'tag' = 'nope'", "'branch' = 'nope'", "'branch' = ''", "'branch' = '..'",
        "'branch' = 'é'", "'limit' = '-1'", "'limit' = '9223372036854775808'", "'columns' = '[[['", "'columns' = 'nope'", "'filter' = '('",
        "'filter' = 'nope > 1'", "'fragments' = '99'", "'timestamp' = 'never'", "'max_rows_per_file' = '9223372036854775808'", "'versionAsOf' = '99'",
        "'timestampAsOf' = 'never'", "'lancespark.scan' = '{'", "'lancespark.write' = '[[['", "'lancespark.table' = 'x'", "'mode' = 'nope'",
        "'storage.region' = 'x'", "'storage.endpoint' = 'http://x'", "'mergeSchema' = 'x'", "'VERSION' = '99'", "'batch_size' = '0'",
    ],
    "version": [
        "0", "-1", "99", "2147483648", "9223372036854775807", "9223372036854775808", "'nope'", "''", "'work:99'", "'nope:1'", "'a:b:c'", "NULL", "1.5",
        "'-1'", "1e2", "'é'", "array(1)", "'..'", "'x/y'", f"'{'9' * 30}'", "(SELECT 1)", "'work:'", "':1'", "' '", "id", "'work'", "'first'",
    ],
    "moment": [
        "'never'", "''", "NULL", "1", "-1", "'9999-12-31'", "'0001-01-01'", "1e300", "current_date()", "array()", "(SELECT 1)", "(SELECT nope)", "rand()",
        "INTERVAL 1 DAY", "X'00'", "true", "DATE'1900-01-01'", "'+999999-01-01'", "CAST(1e18 AS TIMESTAMP)", "CAST(NULL AS TIMESTAMP)", "id", "nosuch()",
        "(SELECT timestamp FROM {t}.versions)", "raise_error('x')",
    ],
    "metadata": ["nope", "versions.x", "`versions `", "VERSIONS", "``", "`..`", "1", "`versions`.`jobs`"],
    "namespace": [
        "lance.no", "lance", "lance.a.b.c", "nocatalog.a", "lance.system", "lance.{bare}", "lance.`{bare}.lance`", "lance.`a/b`", "nope",
        *(f"lance.{name}" for name in NAMES),
    ],
    "index": ["nope", *NAMES],
    "index_type": ["NOPE", "`btree`", "``", "IVF_PQ", "FTS", "BITMAP", "1", "'BTREE'", "LABEL_LIST", "NGRAM", "IVF_FLAT", "IVF_HNSW_PQ", "`é`", "ZONEMAP"],
    "index_option": [
        "'nope' = 'x'", "'num_partitions' = '-1'", "'num_partitions' = 'x'", "'num_partitions' = '9223372036854775808'", "'metric' = 'nope'",
        "'replace' = 'x'", "'name' = 'x'", "'' = ''", "nope", "'train' = '1'", "num_sub_vectors = 99", "'with_position' = 'x'", "'k' = NULL",
    ],
    "order": ["nope", "id, nope", "1", "99", "NULL", "rand()", "vector", "map('a', 1)", "_rowid", "'x'", "sum(id)"],
    "setting": [
        "nope = 1", "'nope' = 1", "num_frags", "num_frags =", "num_frags = -1", "num_frags = 'x'", "num_frags = NULL", "concurrency = 0", "where = 'nope > 1'",
        "target_rows_per_fragment = -1", "target_rows_per_fragment = 'x'", "target_rows_per_fragment = 1e300", "older_than_days = -1", "older_than_days = 'x'",
        "older_than_days = INTERVAL 1 DAY", "error_if_tagged_old_versions = 1", "src_version = 99", "src_version = 'x'", "max_rows_per_fragment = 0",
        "retrain = 'x'", "table = 'x'", "column = 'id'", "stale = 2", "read_version = -1", "k = array(1)", "= 1", "num_frags = 1, num_frags = 2", "1 = 1",
        "num_frags = 9223372036854775808", "num_frags = (SELECT 1)", "num_frags = id", "num_frags = ?", "num_frags = :x",
    ],
    "source": [
        "nope", "lance.no_table", "lance.v", "lance.{bare}", "lance.{bare}.versions", "``", "`a.b`", "(SELECT 1)", "range(3)", "nocatalog.t", "1", "",
        "lance.`../x`", "lance.system.tag", "`\u200b`",
    ],
    "limit": ["-1", "'x'", "NULL", "9223372036854775808", "1.5", "id", "(SELECT 1)", "array(1)", "0", "ALL", "2147483647"],
}  # fmt: skip

RIGHT: Mapping[str, str] = {
    "table": "{t}", "column": "id", "name": "extra", "type": "INT", "literal": "1", "condition": "id > 1", "text": "'x'", "key": "'team'",
    "option": "", "version": "1", "moment": "current_timestamp()", "metadata": "versions", "namespace": "lance.a", "index": "id_idx",
    "index_type": "BTREE", "index_option": "", "order": "id", "limit": "1", "setting": "", "source": "lance.v",
}  # fmt: skip

TEMPLATES = [
    "SELECT {column} FROM {table}",
    "SELECT * FROM {table} WHERE {condition}",
    "SELECT * FROM {table} ORDER BY {order} LIMIT {limit}",
    "SELECT {column}, count(*), min(text) FROM {table} GROUP BY {column} HAVING {condition}",
    "SELECT * FROM {table} OFFSET {limit}",
    "SELECT * FROM {table} VERSION AS OF {version}",
    "SELECT * FROM {table} TIMESTAMP AS OF {moment}",
    "SELECT * FROM {table} WITH ({option}) WHERE {condition}",
    "SELECT * FROM {table}.{metadata}",
    "SELECT * FROM {table} TABLESAMPLE ({limit} ROWS)",
    "SELECT * FROM {table} a JOIN {t} b ON a.id = b.id AND {condition}",
    "INSERT INTO {table} ({column}) VALUES ({literal})",
    "INSERT INTO {table} WITH ({option}) SELECT * FROM {t}",
    "INSERT INTO {table} BY NAME SELECT {literal} AS {name}",
    "INSERT WITH SCHEMA EVOLUTION INTO {table} BY NAME SELECT 9L AS id, {literal} AS {name}",
    "INSERT OVERWRITE {table} SELECT id, {literal}, vector, twice FROM {t}",
    "INSERT INTO {table} REPLACE WHERE {condition} SELECT * FROM {t} WHERE id > 2",
    "UPDATE {table} SET {column} = {literal} WHERE {condition}",
    "UPDATE {table} SET text = {literal}, vector = {literal}",
    "UPDATE {table} WITH ({option}) SET id = 5",
    "DELETE FROM {table} WHERE {condition}",
    "DELETE FROM {table} WITH ({option}) WHERE id > 2",
    "MERGE INTO {table} t USING {t} s ON t.{column} = s.id WHEN MATCHED THEN UPDATE SET t.{column} = {literal}",
    "MERGE INTO {table} t USING (SELECT 9L AS k) s ON k = id WHEN NOT MATCHED AND {literal} = 1 THEN INSERT ({column}) VALUES ({literal})",
    "MERGE WITH SCHEMA EVOLUTION INTO {table} t USING (SELECT 9L AS id, 1 AS {name}) s ON s.id = t.id WHEN NOT MATCHED THEN INSERT *",
    "MERGE INTO {table} WITH ({option}) USING {t} s ON s.id = {table}.id WHEN MATCHED THEN DELETE",
    "MERGE INTO {t} t USING {table} s ON t.id = s.id WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "TRUNCATE TABLE {table}",
    "CREATE TABLE {new} ({name} {type}) TBLPROPERTIES ({key} = {text})",
    "CREATE TABLE {new} ({name} {type} COMMENT {text}) COMMENT {text}",
    "CREATE TABLE {new} AS SELECT {literal} AS {name}",
    "CREATE TABLE {new} USING {name} AS SELECT 1 AS id",
    "CREATE TABLE {new} OPTIONS ({option}) AS SELECT 1 AS id",
    "CREATE TABLE {new} LIKE {table}",
    "CREATE TABLE {new} (id INT) PARTITIONED BY ({column})",
    "CREATE TABLE {new} (id INT) CLUSTERED BY ({column}) INTO 2 BUCKETS",
    "CREATE TABLE {new} (id INT) LOCATION {text}",
    "CREATE TABLE {table} (id INT)",
    "CREATE OR REPLACE TABLE {table} ({name} {type})",
    "CREATE OR REPLACE TABLE {table} AS SELECT {literal} AS {name}",
    "CREATE TEMPORARY VIEW w{n} USING lance OPTIONS (path {text})",
    "ALTER TABLE {table} ADD COLUMNS ({name} {type})",
    "ALTER TABLE {table} ADD COLUMN {column} INT",
    "ALTER TABLE {table} DROP COLUMN {column}",
    "ALTER TABLE {table} RENAME COLUMN {column} TO {name}",
    "ALTER TABLE {table} ALTER COLUMN {column} TYPE {type}",
    "ALTER TABLE {table} ALTER COLUMN {column} COMMENT {text}",
    "ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL",
    "ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL",
    "ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {literal}",
    "ALTER TABLE {table} REPLACE COLUMNS ({name} {type})",
    "ALTER TABLE {t} RENAME TO {table}",
    "ALTER TABLE {table} RENAME TO lance.renamed{n}",
    "ALTER TABLE {table} SET TBLPROPERTIES ({key} = {text})",
    "ALTER TABLE {table} UNSET TBLPROPERTIES ({key})",
    "ALTER TABLE {table} SET LOCATION {text}",
    "ALTER TABLE {table} ADD PARTITION ({column} = {literal})",
    "ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({condition})",
    "COMMENT ON TABLE {table} IS {text}",
    "DROP TABLE {table}",
    "DROP TABLE IF EXISTS {table} PURGE",
    "DROP VIEW {table}",
    "SHOW COLUMNS IN {table}",
    "SHOW CREATE TABLE {table}",
    "SHOW TBLPROPERTIES {table} ({key})",
    "SHOW PARTITIONS {table}",
    "SHOW TABLES IN {namespace} LIKE {text}",
    "SHOW TABLE EXTENDED IN {namespace} LIKE {text}",
    "SHOW NAMESPACES IN {namespace}",
    "SHOW PROCEDURES IN {namespace}",
    "DESCRIBE TABLE EXTENDED {table}",
    "DESCRIBE {table} {column}",
    "DESCRIBE NAMESPACE EXTENDED {namespace}",
    "CREATE NAMESPACE {namespace} COMMENT {text}",
    "CREATE NAMESPACE IF NOT EXISTS {namespace}",
    "ALTER NAMESPACE {namespace} SET PROPERTIES ({key} = {text})",
    "DROP NAMESPACE {namespace}",
    "CREATE INDEX {index} ON {table} USING {index_type} ({column}) OPTIONS ({index_option})",
    "CREATE INDEX IF NOT EXISTS {index} ON {table} ({column})",
    "DROP INDEX {index} ON {table}",
    "DROP INDEX IF EXISTS {index} ON {table}",
    "ANALYZE TABLE {table} COMPUTE STATISTICS FOR COLUMNS {column}",
    "ANALYZE TABLES IN {namespace} COMPUTE STATISTICS",
    "REFRESH TABLE {table}",
    "CACHE TABLE {table}",
    "UNCACHE TABLE {table}",
    "EXPLAIN UPDATE {table} SET {column} = {literal}",
    "DESCRIBE PROCEDURE {namespace}.tag",
    "REPAIR TABLE {table}",
    "LOAD DATA INPATH {text} INTO TABLE {table}",
    "REFRESH COLUMN twice ON {table} WITH ({setting})",
    "REFRESH COLUMN {column} ON {t}",
    "REFRESH COLUMN twice ON {t} WHERE {condition}",
    "OPTIMIZE {table} WITH ({setting})",
    "OPTIMIZE INDEX {index} ON {table} WITH ({setting})",
    "VACUUM {table} WITH ({setting})",
    "VACUUM {table} RETAIN {limit} HOURS",
    "RESTORE TABLE {table} TO VERSION AS OF {version}",
    "ALTER TABLE {table} CREATE TAG {name} AS OF VERSION {version}",
    "ALTER TABLE {table} CREATE TAG IF NOT EXISTS {name}",
    "ALTER TABLE {table} DROP TAG {name}",
    "ALTER TABLE {table} CREATE BRANCH {name} AS OF {version}",
    "ALTER TABLE {table} DROP BRANCH IF EXISTS {name}",
    "ALTER TABLE {table} SET UNENFORCED PRIMARY KEY ({column})",
    "ALTER TABLE {table} ADD COLUMNS {name} FROM {source}",
    "ALTER TABLE {table} UPDATE COLUMNS {column} FROM {source}",
    "CREATE MATERIALIZED VIEW {new} AS SELECT {column} FROM {table}",
    "CREATE MATERIALIZED VIEW {new} AS SELECT id FROM {t} WHERE {condition} WITH NO DATA",
    "CREATE MATERIALIZED VIEW {table} AS SELECT id FROM {t}",
    "REFRESH MATERIALIZED VIEW {table}",
    "REFRESH MATERIALIZED VIEW lance.v WITH ({setting})",
    "DROP MATERIALIZED VIEW {table}",
    "SHOW TAGS IN {table}",
    "SHOW BRANCHES FROM {table}",
    "SHOW INDEXES {table}",
    "SHOW JOBS IN {table}",
    "DESCRIBE HISTORY {table}",
    "EXPLAIN OPTIMIZE {table} WITH ({setting})",
]  # fmt: skip

_PARTS = re.compile(
    r"\{(table|column|name|type|literal|condition|text|key|option|version|moment|metadata|namespace|index|index_type|index_option|order|limit|setting|source)\}"
)
_EMPTY = re.compile(r" (?:WITH|OPTIONS) \(\)")


OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "index_option": ("options",), "key": ("team",), "literal": ("text", "vector", "extra", "default"), "name": ("using", "source"),
    "text": ("comment", "location", "path", "team"), "type": ("extra",), "limit": ("retain",), "index": ("index",), "source": ("view", "rowaddr"),
}  # fmt: skip
"""By kind, the words of a statement next to such a part."""

_CLAUSE = re.compile(r"(?=\b([A-Z]{2,} [A-Z]{2,})\b)")
_NO_CLAUSES = ("ALTER TABLE", "CREATE TABLE", "DROP TABLE", "INSERT INTO", "MERGE INTO")


@dataclass(frozen=True)
class WrongStatement:
    """A statement with one wrong part.

    Attributes:
        text: Its text, with `{t}` and the like.
        wrong: The wrong part.
        names: Names of the wrong part; the error must contain one of these.
    """

    text: str
    wrong: str
    names: tuple[str, ...]

    @property
    def clauses(self) -> list[str]:
        """Clauses of the statement, such as `REPLACE COLUMNS`. An error may refuse a whole clause."""
        return [clause for clause in _CLAUSE.findall(self.text) if clause not in _NO_CLAUSES]


def _filled(template: str, wrong: str | None, value: str) -> str:
    text = _PARTS.sub(lambda part: value if part[1] == wrong else RIGHT[part[1]], template)
    return _EMPTY.sub("", text)


def _words(value: str) -> list[str]:
    return re.findall(r"\w+", value)


def of_templates() -> Iterator[WrongStatement]:
    """Yields each template with each wrong text for each of its parts."""
    for template in TEMPLATES:
        for kind in dict.fromkeys(_PARTS.findall(template)):
            for value in WRONG[kind]:
                yield WrongStatement(
                    _filled(template, kind, value),
                    value,
                    (kind, *_words(value), *OTHER_NAMES.get(kind, ())),
                )


PROCEDURE_ARGUMENTS = {
    "add_column": {"column": "'thrice'", "source": "'{bare}'", "source_column": "'twice'"},
    "add_columns": {"columns": "array('more')", "source": "'no_view'"},
    "backfill": {"column": "'twice'", "where": "'id > 100'", "num_frags": "1", "stale": "true"},
    "cancel_job": {"job": "'no_job'"},
    "cleanup": {"older_than_days": "1", "error_if_tagged_old_versions": "false"},
    "compact": {"target_rows_per_fragment": "100"},
    "create_branch": {"name": "'extra'", "from_ref": "'work'"},
    "create_index": {"column": "'id'", "type": "'BTREE'"},
    "create_materialized_view": {
        "query": "'SELECT id FROM lance.{bare}'",
        "if_not_exists": "true",
        "with_data": "false",
    },
    "drop_branch": {"name": "'work'"},
    "drop_materialized_view": {"if_exists": "true"},
    "drop_tag": {"name": "'first'", "if_exists": "true"},
    "optimize_indices": {"index": "'by_id'", "retrain": "false"},
    "refresh": {"src_version": "1"},
    "restore": {"version": "'1'"},
    "set_primary_key": {"columns": "array('id')"},
    "tag": {"name": "'extra'", "version": "1"},
    "update_columns": {"columns": "array('id')", "source": "'no_view'"},
}
"""Right arguments in addition to `table`."""


def of_procedures() -> Iterator[WrongStatement]:
    """Yields each procedure with wrong, missing, unknown, doubled and misplaced arguments."""
    for name in PROCEDURES:
        right = {"table": "'{bare}'", **PROCEDURE_ARGUMENTS[name]}
        tables = [value.strip("`").replace("lance.", "") for value in WRONG["table"]]
        for wrong, own in right.items():
            values = (
                [*LITERALS, *(f"'{value}'" for value in tables if "'" not in value)]
                if wrong in ("table", "source")
                else LITERALS
            )
            for value in values:
                yield _called(name, right | {wrong: value}, wrong, value)
            yield _called(
                name, {key: value for key, value in right.items() if key != wrong}, wrong, wrong
            )
            yield _called(name, right | {f"{wrong}s": "1"}, wrong, f"{wrong}s")
            places = ", ".join(value for key, value in right.items() if key != wrong)
            yield WrongStatement(f"CALL lance.system.{name}({places})", wrong, ())
            yield WrongStatement(
                f"CALL lance.system.{name}({', '.join(right.values())}, {wrong} => {own})",
                wrong,
                (wrong,),
            )
        yield WrongStatement(f"CALL lance.system.{name}()", name, ("table",))
        yield WrongStatement(
            f"CALL lance.system.{name}({', '.join([*right.values(), '1', '2'])})", name, ()
        )
        for second_statement in (
            f"lance.{name}",
            f"lance.nope.{name}",
            f"nocatalog.system.{name}",
            f"lance.system.{name}s",
            f"lance.system.x.{name}",
        ):
            yield WrongStatement(f"CALL {second_statement}(table => '{{bare}}')", name, (name,))


def _called(name: str, arguments: Mapping[str, str], wrong: str, value: str) -> WrongStatement:
    argument_list = ", ".join(f"{key} => {text}" for key, text in arguments.items())
    return WrongStatement(
        f"CALL lance.system.{name}({argument_list})", value, (wrong, *_words(value))
    )


SEARCHED = {"path": "'{path}'", "query_vector": "array(0.1, 0.2)", "query_text": "'text'"}
SEARCH_RIGHT = {
    "k": "1", "offset": "1", "prefilter": "true", "column": "'vector'", "metric": "'l2'", "nprobes": "1", "refine_factor": "1", "ef": "10",
    "use_index": "false", "text_columns": "array('text')", "phrase": "false", "filter": "'id > 1'", "columns": "array('id')", "version": "1",
    "timestamp": "'2100-01-01'", "with_row_id": "true", "blob_handling": "'descriptor'", "options": "map('batch_size', '10')",
}  # fmt: skip


def of_searches() -> Iterator[WrongStatement]:
    """Yields each table function with wrong, missing and unknown arguments."""
    for function, queries in FUNCTIONS.items():
        right = {name: SEARCHED[name] for name in ("path", *queries)}
        own = (_OF_VECTORS if "query_vector" in queries else ()) + (
            _OF_TEXTS if "query_text" in queries else ()
        )
        for wrong in (*right, *_OF_BOTH, *own, *_OF_READS):
            for value in LITERALS:
                yield _searched(function, right | {wrong: value}, wrong, value)
        for wrong in right:
            yield _searched(
                function, {key: value for key, value in right.items() if key != wrong}, wrong, wrong
            )
        yield _searched(function, right | {"nope": "1"}, "nope", "1")
        yield WrongStatement(f"SELECT * FROM {function}()", function, ("path", "argument"))
        yield WrongStatement(f"SELECT * FROM {function}(TABLE({{t}}))", function, ("path", "table"))
        yield WrongStatement(
            f"SELECT * FROM {function}({', '.join(['1'] * 9)})", function, (function,)
        )
        for value in WRONG["option"]:
            key, _, text = value.partition(" = ")
            yield _searched(
                function, right | {"options": f"map({key}, {text or 'NULL'})"}, "options", value
            )


def _searched(
    function: str, arguments: Mapping[str, str], wrong: str, value: str
) -> WrongStatement:
    argument_list = ", ".join(f"{key} => {text}" for key, text in arguments.items())
    return WrongStatement(
        f"SELECT * FROM {function}({argument_list})", value, (wrong, *_words(value))
    )


SOURCES = {"templates": of_templates, "procedures": of_procedures, "searches": of_searches}
