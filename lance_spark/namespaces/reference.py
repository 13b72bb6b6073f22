"""The reference of a table to its namespace: :class:`NamespaceTable`.

A reference takes the place of the storage options of a table, as the single option
`NAMESPACE_OPTION`. Storage options already travel to tasks, to the tables with the history of a
table, and to commits. So each of these reaches the namespace, and can renew its credentials.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_spark.errors import OptionError

NAMESPACE_OPTION = "lance_spark_namespace_secret"
"""The storage option with the reference. Spark redacts options with `secret` in their name."""

REGISTERED = "LANCE_SPARK_NAMESPACES"
"""Environment variable: the classes of namespaces and of context providers that options of a
statement may name, as `name=module.Class` or `module.Class`, separated by commas."""

_PACKAGE = "lance_namespace_impls"

_NAMED_CLASSES = {
    "glue": f"{_PACKAGE}.glue.GlueNamespace",
    "hive2": f"{_PACKAGE}.hive2.Hive2Namespace",
    "hive3": f"{_PACKAGE}.hive3.Hive3Namespace",
    "iceberg": f"{_PACKAGE}.iceberg.IcebergNamespace",
    "polaris": f"{_PACKAGE}.polaris.PolarisNamespace",
    "unity": f"{_PACKAGE}.unity.UnityNamespace",
}
"""Names of the implementations in the package `lance-namespace-impls`."""

_NATIVE = ("dir", "rest")
"""Names of the implementations in pylance."""

_PROVIDER = "dynamic_context_provider."
_PROVIDER_CLASS = f"{_PROVIDER}impl"

IMPLEMENTATIONS = (*_NATIVE, *_NAMED_CLASSES)


@dataclass(frozen=True, slots=True)
class NamespaceClientSpec:
    """An implementation of a namespace with its properties, as a value that can be pickled.

    Attributes:
        implementation: Name or class path of the implementation.
        properties: Properties of the implementation, as pairs sorted by name. The textual form has
            none, because properties may be secrets.
    """

    implementation: str
    properties: tuple[tuple[str, str], ...] = field(repr=False)

    @staticmethod
    def of(implementation: object, properties: object) -> NamespaceClientSpec:
        """Returns the client of arguments of `connect`.

        Raises:
            OptionError: An argument has another type.
        """
        if not isinstance(implementation, str) or not implementation.strip():
            accepted = f"{', '.join(IMPLEMENTATIONS)}, or the path of a class"
            raise OptionError("namespace_client_impl", implementation, accepted)
        pairs = {} if properties is None else properties
        texts = isinstance(pairs, Mapping) and all(
            isinstance(text, str) for pair in pairs.items() for text in pair
        )
        if not isinstance(pairs, Mapping) or not texts:
            raise OptionError(
                "namespace_client_properties", type(properties).__name__, "a dict of texts"
            )
        if implementation == "dir" and "://" not in (root := pairs.get("root", "://")):
            # Tasks have other working directories.
            pairs = {**pairs, "root": os.path.abspath(root)}
        return NamespaceClientSpec(implementation, tuple(sorted(pairs.items())))

    @property
    def class_path(self) -> str:
        """The implementation as `lance_namespace.connect` takes it."""
        return (
            _registered().get(self.implementation)
            or _NAMED_CLASSES.get(self.implementation)
            or self.implementation
        )

    @property
    def subject(self) -> str:
        """The namespace as the start of a sentence. Has no properties."""
        return f"The namespace {self.implementation!r}"

    def __str__(self) -> str:
        return f"namespace {self.implementation!r}"

    def check_registered(self) -> None:
        """Checks that the client loads only classes that the environment allows.

        A client in the options of a statement may come from any user of SQL.

        Raises:
            OptionError: The environment does not name a class.
        """
        registered = _registered()
        provider = dict(self.properties).get(_PROVIDER_CLASS)
        names = [] if provider is None else [provider]
        if self.implementation not in IMPLEMENTATIONS:
            names.append(self.implementation)
        for name in names:
            if name not in registered and name not in registered.values():
                accepted = (
                    f"{', '.join(IMPLEMENTATIONS)}, or a class that the environment variable {REGISTERED} names in "
                    "Spark's driver and executors"
                )
                raise OptionError(
                    "namespace_client_impl", name, accepted, problem="is not registered"
                )


@dataclass(frozen=True, slots=True)
class NamespaceTable:
    """A table of a namespace.

    Attributes:
        client: The namespace.
        table_id: The names of the namespaces from the root, and of the table.
    """

    client: NamespaceClientSpec
    table_id: tuple[str, ...]

    def __str__(self) -> str:
        return f"the table {'.'.join(self.table_id)}"

    def to_options(self) -> dict[str, str]:
        """Returns the storage options of the table."""
        values = {
            "implementation": self.client.implementation,
            "properties": dict(self.client.properties),
            "table_id": list(self.table_id),
        }
        return {NAMESPACE_OPTION: json.dumps(values, sort_keys=True)}

    def at(self, table_id: Sequence[str]) -> NamespaceTable:
        """Returns another table of the same namespace."""
        return replace(self, table_id=tuple(table_id))

    @staticmethod
    def of(storage: Mapping[str, str]) -> NamespaceTable | None:
        """Returns the table of storage options; None for options of a store.

        Raises:
            OptionError: The options mix both, or the reference is damaged.
        """
        text = storage.get(NAMESPACE_OPTION)
        if text is None:
            return None
        if len(storage) > 1:
            names = ", ".join(sorted(storage.keys() - {NAMESPACE_OPTION}))
            accepted = (
                "no options of a store, because the namespace of the table supplies these options"
            )
            raise OptionError("storage_options", names, accepted)
        return _parse(text)

    @staticmethod
    def check_options(storage: Mapping[str, str]) -> None:
        """Checks the storage options of a statement of Spark.

        Raises:
            OptionError: The options have an invalid reference, or an unregistered class.
        """
        table = NamespaceTable.of(storage)
        if table is not None:
            table.client.check_registered()


@functools.lru_cache(maxsize=64)
def _parse(text: str) -> NamespaceTable:
    from lance_spark.stored_json import parse_json

    try:
        values = parse_json(text)
        client = NamespaceClientSpec.of(values["implementation"], values["properties"])
        return NamespaceTable(client, _checked_id(values["table_id"]))
    except (KeyError, TypeError, ValueError):
        # The text may hold secrets.
        raise OptionError(
            NAMESPACE_OPTION, None, "the reference of a table of a namespace"
        ) from None


def _checked_id(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError
    return tuple(names)


def _registered() -> dict[str, str]:
    """Returns the classes that the environment allows, by name."""
    entries = [
        entry.strip() for entry in os.environ.get(REGISTERED, "").split(",") if entry.strip()
    ]
    pairs = [entry.partition("=") for entry in entries]
    return {name.strip(): (path or name).strip() for name, _, path in pairs}
