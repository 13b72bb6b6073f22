"""Rows and models of `benchmarks.models`. Every contestant imports this module in its own environment."""

from __future__ import annotations

import ast
import asyncio
import fcntl
import io
import os
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count, islice
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

LATENCY_S = 0.05
IN_FLIGHT = 16
"""Concurrent calls of a process."""

KERNEL_S = 0.02
VECTOR = 64
ENCODED = 768
"""Dimensions of the vectors of the transformer."""

_LETTERS = 128
"""Letters of a text that the transformer reads."""

Batch = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """A model and its rows.

    Attributes:
        rows: Number of rows.
        values: Returns the values of the input column, at least `rows` many.
        value_type: Type of the values.
        data_type: Type of the results.
        load: Loads the model, from the folder of the case, and returns a function of a batch.
        batch_size: Rows of a call.
        processes: Number of concurrent processes.
        limit_s: Seconds that the work takes at least, by the number of rows; None for the bare
            loop.
        goal: Share of the limit that lance-spark aims for.
        num_gpus: Real GPUs of a process, or a share of one.
        tolerance: Maximum difference of a result and the result of the bare loop.
    """

    rows: int
    values: Callable[[], Iterator[Any]]
    value_type: pa.DataType
    data_type: pa.DataType
    load: Callable[[str], Batch]
    batch_size: int
    processes: int = 2
    limit_s: Callable[[int], float] | None = None
    goal: float = 0.9
    num_gpus: float | None = None
    tolerance: float = 1e-5

    def table(self, scale: float) -> pa.Table:
        """Returns the rows, with an id each."""
        values = list(islice(self.values(), max(1, int(self.rows * scale))))
        return pa.table(
            {
                "id": pa.array(range(len(values)), pa.int64()),
                "value": pa.array(values, self.value_type),
            }
        )


def record_load(folder: str) -> None:
    """Counts a load of the model."""
    descriptor = os.open(f"{folder}/loads", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    os.close(descriptor)


def count_loads(folder: Path) -> int:
    """Returns the number of loads."""
    file = folder / "loads"
    return len(file.read_text().splitlines()) if file.exists() else 0


def sources() -> Iterator[str]:
    """Yields the files of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path.read_text(encoding="utf-8", errors="replace")


def pieces() -> Iterator[str]:
    """Yields pieces of 4,000 letters without end."""
    texts = list(sources())
    while True:
        yield from (text[at : at + 4000] for text in texts for at in range(0, len(text), 4000))


def docstrings() -> Iterator[str]:
    """Yields docstrings without end, each with a number."""
    warnings.simplefilter("ignore")
    texts = []
    for text in sources():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts += [
            doc
            for node in ast.walk(tree)
            if isinstance(node, nodes) and (doc := ast.get_docstring(node))
        ]
    for turn in count():
        yield from (f"{text} {turn}" for text in texts)


def pictures() -> Iterator[bytes]:
    """Yields PNG files of 320 x 80 pixels with a text, a half of them upside down."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(36)
    for number in count():
        picture, file = Image.new("RGB", (320, 80), "white"), io.BytesIO()
        ImageDraw.Draw(picture).text((10, 15), f"Invoice {number}", fill="black", font=font)
        picture.rotate(180 * (number % 2)).save(file, "PNG")
        yield file.getvalue()


def load_magika(folder: str) -> Batch:
    """Returns the content type of each text."""
    from magika import Magika

    model = Magika()
    return lambda value: pa.array(
        [model.identify_bytes(t.encode()).output.label for t in value.to_pylist()]
    )


def load_vectors(folder: str) -> Batch:
    """Returns hashed words of each text, in `VECTOR` dimensions."""
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(n_features=2**14)
    components = np.load(f"{folder}/components.npy")

    def embed(value: pa.Array) -> pa.Array:
        vectors = words.transform(value.to_pylist()) @ components
        return pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.ravel().astype(np.float32)), VECTOR
        )

    return embed


def fit_components(table: pa.Table, folder: Path) -> None:
    """Fits the SVD of `load_vectors`."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import HashingVectorizer

    counts = HashingVectorizer(n_features=2**14).transform(
        table["value"].slice(0, 2000).to_pylist()
    )
    svd = TruncatedSVD(min(VECTOR, table.num_rows - 1), random_state=0).fit(counts)
    components = np.zeros((2**14, VECTOR))
    components[:, : svd.components_.shape[0]] = svd.components_.T
    np.save(folder / "components.npy", components)


def load_angles(folder: str) -> Batch:
    """Returns the probability that a picture is upside down, from the model of rapidocr."""
    import onnxruntime
    from PIL import Image

    session = onnxruntime.InferenceSession(f"{folder}/angles.onnx")
    name = session.get_inputs()[0].name

    def classify(value: pa.Array) -> pa.Array:
        pictures = [
            Image.open(io.BytesIO(file)).convert("RGB").resize((192, 48))
            for file in value.to_pylist()
        ]
        pixels = (
            np.stack([np.asarray(picture, np.float32).transpose(2, 0, 1) for picture in pictures])
            / 127.5
            - 1
        )
        return pa.array(session.run(None, {name: pixels})[0][:, 1].astype(np.float64))

    return classify


def copy_angles(_table: pa.Table, folder: Path) -> None:
    """Copies the model of `load_angles` out of the wheel of rapidocr."""
    import importlib.util

    package = Path(importlib.util.find_spec("rapidocr_onnxruntime").origin).parent  # type: ignore[union-attr, arg-type]
    model = package / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    (folder / "angles.onnx").write_bytes(model.read_bytes())


def load_kernel(folder: str) -> Batch:
    """Returns results of a made-up GPU: each call holds the device, and sleeps."""
    device = open(f"{folder}/device", "w")  # noqa: SIM115 - as long as the process

    def run(value: pa.Array) -> pa.Array:
        fcntl.flock(device, fcntl.LOCK_EX)
        time.sleep(KERNEL_S)
        fcntl.flock(device, fcntl.LOCK_UN)
        return pa.FixedSizeListArray.from_arrays(
            pa.array(np.ones(len(value) * VECTOR, np.float32)), VECTOR
        )

    return run


def load_transformer(folder: str) -> Batch:
    """Returns vectors of a transformer on a GPU: 12 layers with random weights of 16 bits."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(ENCODED, 12, 4 * ENCODED, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).eval()
    model.to("cuda", torch.bfloat16)
    letters = torch.nn.Embedding(256, ENCODED).to("cuda", torch.bfloat16)

    @torch.inference_mode()
    def encode(value: pa.Array) -> pa.Array:
        texts = [text.encode()[:_LETTERS].ljust(_LETTERS, b" ") for text in value.to_pylist()]
        codes = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, _LETTERS).astype(np.int64)
        means = model(letters(torch.from_numpy(codes).cuda())).float().mean(1)
        return pa.FixedSizeListArray.from_arrays(pa.array(means.cpu().numpy().ravel()), ENCODED)

    return encode


def load_sleeper(folder: str) -> Batch:
    """Returns lengths of the values after a second for each call."""

    def run(value: pa.Array) -> pa.Array:
        time.sleep(1)
        return pa.array([len(text) for text in value.to_pylist()], pa.int64())

    return run


def service_url(folder: str) -> str:
    """Returns the location of the service."""
    return Path(folder, "url").read_text()


def load_threads(folder: str) -> Batch:
    """Returns answers of the service, with `IN_FLIGHT` threads."""
    place, own, pool = (
        urlsplit(service_url(folder)).netloc,
        threading.local(),
        ThreadPoolExecutor(IN_FLIGHT),
    )

    def label(text: str) -> str:
        if not hasattr(own, "connection"):
            own.connection = HTTPConnection(place, timeout=60)
        own.connection.request("POST", "/", text.encode())
        return own.connection.getresponse().read().decode()

    return lambda value: pa.array(pool.map(label, value.to_pylist()), pa.string())


class Client:
    """An asynchronous client of the service. Make it on the event loop of its calls.

    A general client of HTTP takes a millisecond of a core for each call, and the cores are shared with
    the service.
    """

    def __init__(self, folder: str) -> None:
        self._place = urlsplit(service_url(folder))
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def label(self, text: str) -> str:
        """Returns the answer of the service.

        Raises:
            OSError: The service refused the call.
        """
        place, body = self._place, text.encode()
        connection = (
            self._idle.pop()
            if self._idle
            else await asyncio.open_connection(place.hostname, place.port)
        )
        reader, writer = connection
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise OSError(head.decode())
        answer = await reader.readexactly(find_length(head))
        self._idle.append(connection)
        return answer.decode()

    async def label_all(self, texts: list[str]) -> list[str]:
        """Returns all answers, with at most `IN_FLIGHT` calls at once."""
        places = asyncio.Semaphore(IN_FLIGHT)

        async def label(text: str) -> str:
            async with places:
                return await self.label(text)

        return await asyncio.gather(*map(label, texts))


def find_length(head: bytes) -> int:
    """Returns the length of a body from its head."""
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)


class LengthService(asyncio.Protocol):
    """A connection of the service: answers each request with the length of its body, after
    `LATENCY_S`.

    A protocol of asyncio instead of streams, because the service shares the cores with its clients.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins without a request."""
        self._transport = cast("asyncio.Transport", transport)
        self._received = b""

    def data_received(self, data: bytes) -> None:
        """Answers all complete requests."""
        self._received += data
        while True:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            length = find_length(head)
            if not end or len(rest) < length:
                return
            self._received, text = rest[length:], b"%d" % length
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
            asyncio.get_running_loop().call_later(LATENCY_S, self._transport.write, answer)


async def serve(announce: Callable[[int], None]) -> None:
    """Runs the service, and announces its port."""
    server = await asyncio.get_running_loop().create_server(
        LengthService, "127.0.0.1", 0, backlog=512
    )
    announce(server.sockets[0].getsockname()[1])
    await server.serve_forever()


SERVICE = "service, 50 ms"
GPU = "simulated gpu"

PREPARE: dict[str, Callable[[pa.Table, Path], None]] = {
    "text vectors": fit_components,
    "images": copy_angles,
}
"""Files that the models of a case load."""

WORKS = {
    "magika": ModelWork(
        rows=6_000,
        values=pieces,
        value_type=pa.string(),
        data_type=pa.string(),
        load=load_magika,
        batch_size=64,
    ),
    "text vectors": ModelWork(
        rows=24_000,
        values=docstrings,
        value_type=pa.string(),
        data_type=pa.list_(pa.float32(), VECTOR),
        load=load_vectors,
        batch_size=512,
    ),
    "images": ModelWork(
        rows=4_000,
        values=pictures,
        value_type=pa.binary(),
        data_type=pa.float64(),
        load=load_angles,
        batch_size=16,
    ),
    SERVICE: ModelWork(
        rows=4_000,
        values=docstrings,
        value_type=pa.string(),
        data_type=pa.string(),
        load=load_threads,
        batch_size=1_000,
        limit_s=lambda rows: rows * LATENCY_S / (2 * IN_FLIGHT),
    ),
    GPU: ModelWork(
        rows=20_000,
        values=pieces,
        value_type=pa.string(),
        data_type=pa.list_(pa.float32(), VECTOR),
        load=load_kernel,
        batch_size=64,
        processes=1,
        limit_s=lambda rows: -(-rows // 64) * KERNEL_S,
    ),
    "transformer": ModelWork(
        rows=200_000,
        values=docstrings,
        value_type=pa.string(),
        data_type=pa.list_(pa.float32(), ENCODED),
        load=load_transformer,
        batch_size=512,
        processes=1,
        num_gpus=1,
        tolerance=0.02,
    ),
    "transformer, half": ModelWork(
        rows=200_000,
        values=docstrings,
        value_type=pa.string(),
        data_type=pa.list_(pa.float32(), ENCODED),
        load=load_transformer,
        batch_size=512,
        processes=2,
        num_gpus=0.5,
        tolerance=0.02,
    ),
    "sleeper": ModelWork(
        rows=20_000,
        values=docstrings,
        value_type=pa.string(),
        data_type=pa.int64(),
        load=load_sleeper,
        batch_size=1_000,
        limit_s=lambda rows: -(-rows // 2_000),
        goal=10 / 10.5,
    ),
}


class BatchModel:
    """The UDF of all cases except the service."""

    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder = name, folder

    def setup(self) -> None:
        record_load(self.folder)
        self.compute = WORKS[self.name].load(self.folder)

    def __call__(self, value: pa.Array) -> pa.Array:
        return self.compute(value)


class ServiceModel:
    """The UDF that calls the service."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    async def setup(self) -> None:
        record_load(self.folder)
        self.client = Client(self.folder)

    async def __call__(self, value: str) -> str:
        return await self.client.label(value)
