"""What Geneva's decorators and manifests have besides: refused by name, with what serves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from udf_runtime.errors import UdfDefinitionError

_F = TypeVar("_F", bound=Callable[..., object])
_T = TypeVar("_T", bound=type)

_NO_CONDA = "conda environments are not built on executors: name packages with Manifest.create_pip(name).pip([...])"
_NO_IMAGE = (
    "environments are made inside of the executors that are there: start the Spark application on that image "
    "(spark.kubernetes.container.image), or name packages with pip"
)
_IN_ARCHIVES = "modules and folders that come along are in archives; a builder takes them with py_modules([...])"
_NO_FOLDER = "zip files are kept beside the tables; a builder takes the folder of their making, local_zip_output_dir()"
_SELECTED = "columns of the source are chosen in its query: table.search(None).select([...])"
_ORDERED = "a table function gets all rows at once: group them in it, or order the source in Spark before"
_NO_SERVICE = "nothing runs by itself: call refresh() after rows were added, or on a schedule"

SERVES: Mapping[str, str] = {
    "GenevaManifest.as_dict": "use to_dict()",
    "GenevaManifest.compute_checksum": "use checksum",
    "GenevaManifest.conda": _NO_CONDA,
    "GenevaManifest.conda_environment_path": _NO_CONDA,
    "GenevaManifest.delete_local_zips": _NO_FOLDER,
    "GenevaManifest.head_image": _NO_IMAGE,
    "GenevaManifest.local_zip_output_dir": _NO_FOLDER,
    "GenevaManifest.pip_extra_index_urls": "use extra_index_urls",
    "GenevaManifest.py_modules": _IN_ARCHIVES,
    "GenevaManifest.requirements_path": "a builder reads the file, requirements_path(path), and its lines are in pip",
    "GenevaManifest.worker_image": _NO_IMAGE,
    "GenevaManifest.zips": _IN_ARCHIVES,
    **{
        f"{builder}.{name}": serves
        for builder in ("PipManifestBuilder", "SiteManifestBuilder")
        for name, serves in {
            "default_head_image": _NO_IMAGE,
            "default_worker_image": _NO_IMAGE,
            "delete_local_zips": _NO_FOLDER,
            "head_image": _NO_IMAGE,
            "worker_image": _NO_IMAGE,
        }.items()
    },
    "chunker(auto_refresh)": _NO_SERVICE,
    "chunker(batch)": "a chunker gets one row; Arrow values of it come by annotations, as in @udf",
    "chunker(inherit_input_columns)": _SELECTED,
    "udtf(auto_refresh)": _NO_SERVICE,
    "udtf(input_columns)": _SELECTED,
    "udtf(on_error)": "it is called once, with all rows: handle errors in it",
    "udtf(partition_by)": _ORDERED,
    "udtf(partition_by_indexed_column)": _ORDERED,
}
"""Names, `Class.member` or `function(parameter)`, with what serves instead."""


class RefusedAttributeError(UdfDefinitionError, AttributeError):
    """An attribute that Geneva has and this class has not; `hasattr` is false for it."""


def refusing_parameters(function: _F) -> _F:
    """Decorates a function that refuses parameters which only Geneva's of its name has."""
    name = function.__name__

    @functools.wraps(function)
    def checked(*args: object, **named: object) -> object:
        for parameter in named:
            if (serves := SERVES.get(f"{name}({parameter})")) is not None:
                raise UdfDefinitionError(f"{parameter} of Geneva is no parameter here - in @{name} - {serves}")
        return function(*args, **named)

    return checked  # type: ignore[return-value]


def refusing_attributes(theirs: str) -> Callable[[_T], _T]:
    """Returns a decorator of a class that refuses what Geneva's class of this name has besides."""

    def decorate(cls: _T) -> _T:
        def missing(self: object, name: str) -> NoReturn:
            if (serves := SERVES.get(f"{theirs}.{name}")) is not None:
                raise RefusedAttributeError(f"{name} of Geneva is no attribute here - of a {cls.__name__} - {serves}")
            raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}", name=name, obj=self)

        cls.__getattr__ = missing  # type: ignore[attr-defined]
        return cls

    return decorate
