"""Settings of a vector search: :class:`VectorSettings`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from lance_spark.options.io_options import check_number
from lance_spark.queries.parameters import metric_of


class VectorSettings:
    """The methods of :class:`lance_spark.Search` for vectors."""

    __slots__ = ()

    @abstractmethod
    def _set(self, option: str, value: object, *, name: str | None = None) -> Self:
        """Returns the search with a setting; `name` is the method if it has another name."""

    def distance_type(self, distance_type: str) -> Self:
        """Sets the metric: `l2`, `cosine`, `dot`, or `hamming` for `uint8`.

        The default is the metric of the index, else `l2`. Lance ignores an index with another
        metric.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).distance_type("cosine").to_list()
            ```
        """
        return self._set("metric", metric_of(distance_type, option="distance_type"))

    def metric(self, metric: str) -> Self:
        """Sets the metric. This is the older name of :meth:`distance_type`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).metric("dot").to_list()
            ```
        """
        return self._set("metric", metric_of(metric))

    def minimum_nprobes(self, minimum_nprobes: int) -> Self:
        """Sets the least number of index partitions to search, as :meth:`nprobes` does.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).minimum_nprobes(5).maximum_nprobes(50).to_list()
            ```
        """
        check_number("minimum_nprobes", minimum_nprobes, least=1)
        return self._set("nprobes", minimum_nprobes, name="minimum_nprobes")

    def maximum_nprobes(self, maximum_nprobes: int) -> Self:
        """Sets the largest number of index partitions to search; 0 is all.

        Lance searches more than the least number if these partitions hold too few rows.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).maximum_nprobes(50).to_list()
            ```
        """
        is_all = isinstance(maximum_nprobes, int) and maximum_nprobes == 0
        return self._set("maximum_nprobes", None if is_all else maximum_nprobes)

    def distance_range(
        self, lower_bound: float | None = None, upper_bound: float | None = None
    ) -> Self:
        """Selects rows whose distance is at least `lower_bound` and less than `upper_bound`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            near = docs.search([0.1, 0.2]).distance_range(upper_bound=0.5).to_list()
            ```
        """
        search = self._set("lower_bound", lower_bound)
        return search._set("upper_bound", upper_bound)  # noqa: SLF001 - its own

    def nprobes(self, nprobes: int) -> Self:
        """Sets the number of index partitions to search. More partitions find more rows.

        Lance searches further partitions if these hold fewer rows than requested.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).nprobes(20).to_list()
            ```
        """
        return self._set("nprobes", nprobes)

    def refine_factor(self, refine_factor: int) -> Self:
        """Computes exact distances for `refine_factor` times the requested rows.

        A compressed index (PQ, SQ) only approximates distances. With 1, the index selects the rows
        and their `_distance` is exact.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).refine_factor(10).to_list()
            ```
        """
        return self._set("refine_factor", refine_factor)

    def ef(self, ef: int) -> Self:
        """Sets the number of candidates of an HNSW search. More candidates improve recall.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).ef(64).to_list()
            ```
        """
        return self._set("ef", ef)

    def bypass_vector_index(self) -> Self:
        """Compares all vectors without an index. The result is exact, and the search is slow.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            exact = docs.search([0.1, 0.2]).bypass_vector_index().to_list()
            ```
        """
        return self._set("use_index", False)
