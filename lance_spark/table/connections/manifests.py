"""Environments of UDFs by their names: a part of the facade of a connection."""

from __future__ import annotations

from lance_spark.environments.stored import capture
from lance_spark.table.connections.folders import FolderTables
from lance_spark.table.connections.namespaces import NamespaceTables
from udf_runtime import Manifest


class ConnectionManifests:
    """The methods of :class:`lance_spark.Connection` for manifests."""

    _tables: FolderTables | NamespaceTables

    def capture_local_environment(
        self, name: str | None = None, *, skip_site_packages: bool = False
    ) -> Manifest:
        """Captures the environment of this process for UDFs on executors.

        The working directory comes along, without hidden files, virtual environments and data, so
        the UDF finds its modules. So do the installed packages, for executors of the same platform
        and Python. The store of the tables keeps both as zip files, once per content.

        Args:
            name: Name of the manifest; by default made from the user and the time.
            skip_site_packages: Whether to leave out the installed packages. The UDF then uses the
                packages of the executors' Python.

        Returns:
            The manifest.

        Raises:
            UdfDefinitionError: The working directory is the home directory, or larger than a
                gibibyte.
            TableUnwritableError: The store refused the write.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            manifest = db.capture_local_environment("experiment", skip_site_packages=True)
            assert manifest.name == "experiment"
            ```
        """
        return capture(
            name, self._tables.manifests().objects, skip_site_packages=skip_site_packages
        )

    def define_manifest(self, name: str, manifest: Manifest) -> None:
        """Stores a manifest under a name, for `connect(default_manifest=name)` and other processes.

        A manifest of the same name is replaced. Columns and views keep their own copies.

        Raises:
            OptionError: The name or the manifest is not valid.
            UdfDefinitionError: A file of the manifest is neither in the store nor of this process.

        Example:
            ```python
            import lance_spark
            from lance_spark import Manifest

            db = lance_spark.connect("library")
            db.define_manifest("numpy", Manifest.create_pip("numpy").pip(["numpy==2.3.5"]).build())
            assert list(db.list_manifests()) == ["numpy"]
            ```
        """
        self._tables.manifests().define(name, manifest)

    def list_manifests(self) -> dict[str, Manifest]:
        """Returns the stored manifests, sorted by name.

        Example:
            ```python
            import lance_spark

            assert lance_spark.connect("library").list_manifests() == {}
            ```
        """
        return self._tables.manifests().all()

    def get_manifest(self, name: str) -> Manifest:
        """Returns the manifest that is stored under a name.

        Raises:
            RegistrationError: The folder has no such manifest.

        Example:
            ```python
            import lance_spark
            from lance_spark import Manifest

            db = lance_spark.connect("library")
            db.define_manifest("numpy", Manifest.create_pip("numpy").pip(["numpy==2.3.5"]).build())
            assert db.get_manifest("numpy").pip == ("numpy==2.3.5",)
            ```
        """
        return self._tables.manifests().get(name)

    def delete_manifest(self, name: str) -> None:
        """Deletes the manifest that is stored under a name. Columns and views keep their copies.

        Raises:
            RegistrationError: The folder has no such manifest.

        Example:
            ```python
            import lance_spark
            from lance_spark import Manifest

            db = lance_spark.connect("library")
            db.define_manifest("numpy", Manifest.create_pip("numpy").pip(["numpy==2.3.5"]).build())
            db.delete_manifest("numpy")
            assert db.list_manifests() == {}
            ```
        """
        self._tables.manifests().delete(name)
