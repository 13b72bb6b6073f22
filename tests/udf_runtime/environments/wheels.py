"""Small wheels, and source packages, made by tests."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: tuple[str, ...] = (),
) -> Path:
    """Makes a wheel of one module that contains its version."""
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {requirement}" for requirement in requires),
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(
            f"{info}/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
        )
        archive.writestr(
            f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    return path


def source(folder: Path, name: str, version: str, code: str) -> Path:
    """Makes a source distribution whose build runs code and then fails."""
    path = folder / f"{name}-{version}.tar.gz"
    project = f"[project]\nname = '{name}'\nversion = '{version}'\n"
    backend = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": project + backend,
        "backend.py": f"def build_wheel(*_, **__):\n    {code}\n",
    }
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            info = tarfile.TarInfo(f"{name}-{version}/{file}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path
