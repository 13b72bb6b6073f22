"""Jars from Maven Central, pinned by their digests and cached for all checkouts of a user."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CENTRAL = "https://repo1.maven.org/maven2"


class DownloadError(Exception):
    """Maven Central does not answer, or the digest of a jar differs."""


class DigestError(DownloadError):
    """The digest of a jar differs, so that the jar may be forged."""


@dataclass(frozen=True, slots=True)
class MavenJar:
    """A jar.

    Attributes:
        path: Path below the root of a Maven repository.
        sha256: Digest of the jar.
    """

    path: str
    sha256: str

    def fetch(self) -> Path:
        """Returns the path of the jar in the cache, and downloads the jar the first time.

        Raises:
            DownloadError: Maven Central does not answer, or the digest of the jar differs.
        """
        target = cache_folder() / self.path.rpartition("/")[2]
        if not target.exists():
            content = self._download()
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(f".{os.getpid()}.tmp")
            partial.write_bytes(content)
            partial.replace(target)
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
        if digest != self.sha256:
            raise DigestError(
                f"The digest of {target} is {digest}, and {self.sha256} was expected. Delete the file and try again."
            )
        return target

    def _download(self) -> bytes:
        url = f"{CENTRAL}/{self.path}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                content: bytes = answer.read()
        except OSError as error:
            raise DownloadError(
                f"{url} could not be downloaded: {error}. Check the connection to Maven Central."
            ) from None
        return content


def fetch_all(artifacts: Sequence[MavenJar]) -> list[Path]:
    """Returns the paths of jars. Downloads run in parallel.

    Raises:
        DownloadError: Maven Central does not answer, or the digest of a jar differs.
    """
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(MavenJar.fetch, artifacts))


def cache_folder() -> Path:
    """Returns the folder of the cache, outside of the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "lance-spark-java")


def _artifact(group: str, name: str, version: str, sha256: str, classifier: str = "") -> MavenJar:
    file = f"{name}-{version}{'-' if classifier else ''}{classifier}.jar"
    return MavenJar(f"{group.replace('.', '/')}/{name}/{version}/{file}", sha256)


GOOGLE_JAVA_FORMAT = _artifact(
    "com.google.googlejavaformat",
    "google-java-format",
    "1.28.0",
    "32342e7c1b4600f80df3471da46aee8012d3e1445d5ea1be1fb71289b07cc735",
    "all-deps",
)
JUNIT = _artifact(
    "org.junit.platform",
    "junit-platform-console-standalone",
    "1.13.4",
    "3fdfc37e29744a9a67dd5365e81467e26fbde0b7aa204e6f8bbe79eeaa7ae892",
)
ERROR_PRONE = (
    _artifact(
        "com.google.errorprone",
        "error_prone_core",
        "2.42.0",
        "f9e747a2ff76dfae6bc0f71fc8c259b7493ecc093a96d3223d5b2669a996b0a7",
        "with-dependencies",
    ),
    _artifact(
        "io.github.eisop",
        "dataflow-errorprone",
        "3.41.0-eisop1",
        "10434fba4e53f55fa9c76904cde414b918932548c9dfc4e2d634ac05ff7a7d10",
    ),
)

_LIBRARIES = (
    _artifact(
        "org.scala-lang",
        "scala-library",
        "2.13.18",
        "4e85d96ff7bc7dc627985523c3541b9917aaa08e956391380c42db21a2c4e5a0",
    ),
    _artifact(
        "org.scala-lang",
        "scala-reflect",
        "2.13.18",
        "6935ff1982b2ac93d695f15aa66921be2f602921277afe002f018fd8c7d6e29b",
    ),
    _artifact(
        "com.fasterxml.jackson.core",
        "jackson-core",
        "2.21.2",
        "12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b",
    ),
    _artifact(
        "com.fasterxml.jackson.core",
        "jackson-databind",
        "2.21.2",
        "8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849",
    ),
    _artifact(
        "com.fasterxml.jackson.core",
        "jackson-annotations",
        "2.21",
        "53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b",
    ),
    _artifact(
        "org.apache.arrow",
        "arrow-vector",
        "19.0.0",
        "113e70317945e780050f13d17027d862d4c5d1cebe06c9fd8a5e922945bb2f8c",
    ),
    _artifact(
        "org.apache.arrow",
        "arrow-memory-core",
        "19.0.0",
        "0d3646cc2fa9ae94e95dc8b3e0ed5a51e1df15b59dc548f359e941023471884d",
    ),
    _artifact(
        "org.scala-lang.modules",
        "scala-xml_2.13",
        "2.4.0",
        "b549a1bf335bc4528cf26f005894c7c37220ac4e8450847973d8f4001b8f59ea",
    ),
    _artifact(
        "jakarta.servlet",
        "jakarta.servlet-api",
        "6.0.0",
        "c034eb1afb158987dbb53a5fea0cadf611c8dae8daadd59c44d9d5ab70129cef",
    ),
    _artifact(
        "net.sf.py4j",
        "py4j",
        "0.10.9.9",
        "bc4c4b1e731ab18496cc6eab31e7353701b32fc5c3047764a0656acf5344a54b",
    ),
    _artifact(
        "org.slf4j",
        "slf4j-api",
        "2.0.17",
        "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832",
    ),
    _artifact(
        "com.esotericsoftware",
        "kryo-shaded",
        "4.0.3",
        "cb32b28ba586a96260d7d5016ffe7a2132c300644ddb68d78545ff31849c367d",
    ),
    _artifact(
        "com.google.code.findbugs",
        "jsr305",
        "3.0.0",
        "bec0b24dcb23f9670172724826584802b80ae6cbdaba03bdebdef9327b962f6a",
    ),
)

_SPARK = {
    "4.1.2": {
        "spark-catalyst": "197585dfcb678588bfa08f46e2e18e06038fa6edc57c69827dc4591e31dfeada",
        "spark-common-utils": "6c117b478cac4b617290ebda7e5ee372b63ddbf63ff3fa8da87810c2d8b0c613",
        "spark-core": "19cea8a7759431a276b7e4d0837f21472a72f01806739957ad85bfd686db7abb",
        "spark-kvstore": "eed551ba425dcda9fd57306cbcc0807300e8a9ab3c4345845521b0e5dc2b9cda",
        "spark-sql-api": "1448733d5bd7d2b65330b9a160d345a1b6f39628ab495d6a99012183cafb8b15",
        "spark-sql": "2c97d6ba8539d10784ad05b5cb4f7361467322aef2d2e84eb4f87231001792eb",
        "spark-unsafe": "7069a4aeef2c841268813f5de7baf062a84d0eaeda220d5924cdfc0d47b9a99d",
    },
    "4.2.0": {
        "spark-catalyst": "aef4f68a687de8174d06c5cb451c48019847f90c0b0604ec1928ee313b2a6c40",
        "spark-common-utils": "7cef7d3e25bf7d778588da7764b38b63235eda1146d3cd4b42a70ceb79506692",
        "spark-core": "8e0a03b66338a4a38c9089d9f798ab6a6c6583aefe93f910311704a5ec90ffc4",
        "spark-kvstore": "d264395f5bb7a1ada24a515881ceacc13029e9c7a1495a06f39ae8691bae8d6e",
        "spark-sql-api": "d789409a56db600c5160300fcd2c9651bf6f32dd8db1035a9bda17b67543b372",
        "spark-sql": "ec0a0d699c6c57300ee47ba5d54b4d1f71d3e5401fb90a2bcdcd83b942084dbf",
        "spark-unsafe": "8933245859525e6c02dc309890200bedfbc80f18e6b45bae726ab602afb347fd",
    },
}
"""Digests of the jars of Spark. PySpark serves for releases outside of Maven Central."""

RELEASES = tuple(_SPARK)


def jars_of(release: str) -> list[Path]:
    """Returns the jars that the Java needs of a release of Spark.

    Raises:
        DownloadError: Maven Central does not answer, or the digest of a jar differs.
    """
    jars = [
        _artifact("org.apache.spark", f"{name}_2.13", release, digest)
        for name, digest in _SPARK[release].items()
    ]
    return fetch_all([*jars, *_LIBRARIES])
