"""An S3 server for tests: logs every request, delays replies, and fails as ordered. Started as a script.

One thread serves all connections and answers each request without an interruption. Conditional puts are therefore
atomic, as in a real store. `--ignore-conditions` simulates a store without conditional puts, by ignoring the header.

The server keeps all objects in memory. The operations are those of Lance: objects with ranges and conditions,
copies, lists in pages, deletion of several objects, and multipart uploads.

A PUT of JSON to `FAULTS` sets delays and failures; see :class:`Faults`. A GET of `REQUESTS` returns the log.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import functools
import hashlib
import itertools
import json
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

REQUESTS = "/-/requests"
"""Returns the log since the last call, as a JSON list of the fields of `servers.StoreRequest`."""

FAULTS = "/-/faults"
"""Takes the faults from now on, as JSON."""

PAGE_LIMIT = 1000
"""Maximum number of keys in a page of a list."""

MIN_PART_BYTES = 5 << 20
"""Minimum size of the parts of an upload, except for the last part."""

BROKEN = 0
"""The status of a request whose connection breaks."""

EXPIRING_KEY = re.compile(r"Credential=until-(\d+)/")
"""In the signature of a request: an access key with the time of its expiry, in milliseconds since the epoch."""

_LAST_CHARACTER = "\U0010ffff"
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@dataclass(kw_only=True)
class Faults:
    """The delays and failures of the server.

    Attributes:
        latency_s: Seconds between the receipt of a request and its execution.
        down_s: Seconds without connections.
        away_s: Seconds without connections after a lost reply.
        down_while: A file; the server refuses connections while the file exists.
        error_rate: Share of the requests with a 503.
        reset: Pattern of `METHOD path`. The connection breaks before the execution of a matching request.
        lose: Pattern of `METHOD path`. The connection breaks after the execution of a matching request.
        skip: Number of matching requests before the first fault.
        times: Number of faults.
        deny: Whether all requests are refused, as with expired credentials.
        lasting_keys: Whether keys without an expiry are accepted; see :data:`EXPIRING_KEY`.
    """

    latency_s: float = 0.0
    down_s: float = 0.0
    away_s: float = 0.0
    down_while: str = ""
    error_rate: float = 0.0
    reset: str | None = None
    lose: str | None = None
    skip: int = 0
    times: int = 1
    deny: bool = False
    lasting_keys: bool = True

    def strikes(self, pattern: str | None, request: str) -> bool:
        """Tells whether a fault of a pattern is due, and counts the request."""
        if pattern is None or not re.search(pattern, request) or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(frozen=True, kw_only=True)
class S3Request:
    """A request.

    Attributes:
        method: HTTP method.
        path: Bucket and key, decoded.
        query: The query as sent.
        headers: Headers by lower-case name.
        body: The body.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @functools.cached_property
    def parameters(self) -> dict[str, str]:
        return dict(parse_qsl(self.query, keep_blank_values=True))

    @property
    def target(self) -> str:
        return self.path + (f"?{self.query}" if self.query else "")


@dataclass(frozen=True, kw_only=True)
class S3Reply:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def xml_reply(text: str, *, status: int = 200) -> S3Reply:
    return S3Reply(
        status=status, headers={"Content-Type": "application/xml"}, body=f"{_XML}{text}".encode()
    )


def refusal(status: int, code: str) -> S3Reply:
    return xml_reply(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status=status)


MISSING_KEY = refusal(404, "NoSuchKey")
MISSING_UPLOAD = refusal(404, "NoSuchUpload")
UNMET_CONDITION = refusal(412, "PreconditionFailed")


@dataclass(frozen=True)
class StoredObject:
    content: bytes
    etag: str
    modified_s: float


class Bucket:
    """The objects of a bucket, by key."""

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.keys: list[str] = []
        """Sorted: the order of code points is the order of UTF-8."""

    def put(self, key: str, content: bytes, etag: str = "") -> StoredObject:
        if key not in self.objects:
            bisect.insort(self.keys, key)
        stored = self.objects[key] = StoredObject(content, etag or etag_of(content), time.time())
        return stored

    def delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect.bisect_left(self.keys, key)]

    def page(
        self, prefix: str, delimiter: str, after: str, limit: int
    ) -> tuple[list[str], list[str], str]:
        """Returns keys and folders of a page in order, and the token of the next page, empty after the last page."""
        keys: list[str] = []
        folders: list[str] = []
        position = max(bisect.bisect_left(self.keys, prefix), bisect.bisect_right(self.keys, after))
        token = ""
        while position < len(self.keys) and self.keys[position].startswith(prefix):
            if len(keys) + len(folders) == limit:
                return keys, folders, token
            key = self.keys[position]
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                keys.append(key)
                token = key
                position += 1
            else:
                folders.append(key[: end + len(delimiter)])
                token = folders[-1] + _LAST_CHARACTER
                position = bisect.bisect_right(self.keys, token)
        return keys, folders, ""


def etag_of(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class UploadPart(NamedTuple):
    content: bytes
    etag: str


@dataclass
class Upload:
    """A multipart upload: its parts by number."""

    parts: dict[int, UploadPart] = field(default_factory=dict)

    def complete(self, body: bytes) -> list[UploadPart] | S3Reply:
        """Returns the parts listed by a completion, or the refusal of the completion."""
        parts: list[UploadPart] = []
        for element in ET.fromstring(body).iterfind("{*}Part"):
            part = self.parts.get(int(element.findtext("{*}PartNumber", "0")))
            if part is None or part.etag != element.findtext("{*}ETag"):
                return refusal(400, "InvalidPart")
            parts.append(part)
        if any(len(part.content) < MIN_PART_BYTES for part in parts[:-1]):
            return refusal(400, "EntityTooSmall")
        return parts or refusal(400, "MalformedXML")


class ObjectStore:
    """Answers requests from memory."""

    def __init__(self, *, ignore_conditions: bool) -> None:
        self.ignore_conditions = ignore_conditions
        self.buckets: dict[str, Bucket] = {}
        self.uploads: dict[str, Upload] = {}
        self.upload_numbers = itertools.count()

    def answer(self, request: S3Request) -> S3Reply:
        if "transfer-encoding" in request.headers:
            return refusal(501, "NotImplemented")
        name, _, key = request.path.lstrip("/").partition("/")
        if request.method == "PUT" and not key:
            self.buckets.setdefault(name, Bucket())
            return S3Reply()
        bucket = self.buckets.get(name)
        if bucket is None:
            return refusal(404, "NoSuchBucket")
        for method, parameter, handle in ROUTES:
            if request.method == method and (not parameter or parameter in request.parameters):
                return handle(self, bucket, key, request)
        return refusal(405, "MethodNotAllowed")

    def get(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        stored = bucket.objects.get(key)
        if stored is None:
            return MISSING_KEY
        headers = {
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.modified_s, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if request.headers.get("if-match", stored.etag) != stored.etag:
            return UNMET_CONDITION
        if request.headers.get("if-none-match") == stored.etag:
            return S3Reply(status=304, headers=headers)
        size = len(stored.content)
        requested_range = range_of(request, size)
        if requested_range is None:
            return S3Reply(headers=headers, body=stored.content)
        if not requested_range:
            return refusal(416, "InvalidRange")
        headers["Content-Range"] = (
            f"bytes {requested_range.start}-{requested_range.stop - 1}/{size}"
        )
        return S3Reply(
            status=206,
            headers=headers,
            body=stored.content[requested_range.start : requested_range.stop],
        )

    def put(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        if not self.meets_condition(bucket, key, request):
            return UNMET_CONDITION
        return S3Reply(headers={"ETag": bucket.put(key, request.body).etag})

    def meets_condition(self, bucket: Bucket, key: str, request: S3Request) -> bool:
        if self.ignore_conditions:
            return True
        stored = bucket.objects.get(key)
        if request.headers.get("if-none-match") == "*" and stored is not None:
            return False
        etag = request.headers.get("if-match")
        return etag is None or (stored is not None and stored.etag == etag)

    def copy(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        source = self.source_of(request)
        if source is None:
            return MISSING_KEY
        if not self.meets_condition(bucket, key, request):
            return UNMET_CONDITION
        stored = bucket.put(key, source.content)
        return xml_reply(
            f"<CopyObjectResult><ETag>{escape(stored.etag)}</ETag>"
            f"<LastModified>{iso_time(stored.modified_s)}</LastModified></CopyObjectResult>"
        )

    def source_of(self, request: S3Request) -> StoredObject | None:
        """Returns the object that a request copies."""
        bucket, _, key = unquote(request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
        return self.buckets[bucket].objects.get(key)

    def put_or_copy(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        handle = self.copy if "x-amz-copy-source" in request.headers else self.put
        return handle(bucket, key, request)

    def delete(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        bucket.delete(key)
        return S3Reply(status=204)

    def delete_several(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        keys = [
            element.text or ""
            for element in ET.fromstring(request.body).iter()
            if element.tag[-3:] == "Key"
        ]
        for name in keys:
            bucket.delete(name)
        deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in keys)
        return xml_reply(f"<DeleteResult {_NAMESPACE}>{deleted}</DeleteResult>")

    def list(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        parameters = request.parameters
        prefix = parameters.get("prefix", "")
        after = parameters.get("continuation-token") or parameters.get("start-after", "")
        limit = min(int(parameters.get("max-keys", PAGE_LIMIT)), PAGE_LIMIT)
        keys, folders, token = bucket.page(prefix, parameters.get("delimiter", ""), after, limit)
        contents = "".join(listed(name, bucket.objects[name]) for name in keys)
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders
        )
        next_token = (
            f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        )
        return xml_reply(
            f"<ListBucketResult {_NAMESPACE}><Prefix>{escape(prefix)}</Prefix><MaxKeys>{limit}</MaxKeys>"
            f"<KeyCount>{len(keys) + len(folders)}</KeyCount><IsTruncated>{str(bool(token)).lower()}</IsTruncated>"
            f"{next_token}{contents}{prefixes}</ListBucketResult>"
        )

    def begin_upload(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        number = str(next(self.upload_numbers))
        self.uploads[number] = Upload()
        return xml_reply(
            f"<InitiateMultipartUploadResult {_NAMESPACE}><Key>{escape(key)}</Key><UploadId>{number}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )

    def put_part(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        upload = self.uploads.get(request.parameters["uploadId"])
        if upload is None:
            return MISSING_UPLOAD
        content = request.body
        is_copy = "x-amz-copy-source" in request.headers
        if is_copy:
            source = self.source_of(request)
            if source is None:
                return MISSING_KEY
            content = source.content
        part = upload.parts[int(request.parameters["partNumber"])] = UploadPart(
            content, etag_of(content)
        )
        if is_copy:
            return xml_reply(f"<CopyPartResult><ETag>{escape(part.etag)}</ETag></CopyPartResult>")
        return S3Reply(headers={"ETag": part.etag})

    def complete_upload(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        upload = self.uploads.get(request.parameters["uploadId"])
        if upload is None:
            return MISSING_UPLOAD
        if not self.meets_condition(bucket, key, request):
            return UNMET_CONDITION
        parts = upload.complete(request.body)
        if isinstance(parts, S3Reply):
            return parts
        del self.uploads[request.parameters["uploadId"]]
        etags = etag_of("".join(part.etag for part in parts).encode()).strip('"')
        stored = bucket.put(
            key, b"".join(part.content for part in parts), f'"{etags}-{len(parts)}"'
        )
        return xml_reply(
            f"<CompleteMultipartUploadResult {_NAMESPACE}><Key>{escape(key)}</Key><ETag>{escape(stored.etag)}</ETag>"
            "</CompleteMultipartUploadResult>"
        )

    def abort_upload(self, bucket: Bucket, key: str, request: S3Request) -> S3Reply:
        self.uploads.pop(request.parameters["uploadId"], None)
        return S3Reply(status=204)


ROUTES: tuple[tuple[str, str, Callable[[ObjectStore, Bucket, str, S3Request], S3Reply]], ...] = (
    ("GET", "list-type", ObjectStore.list),
    ("GET", "", ObjectStore.get),
    ("HEAD", "", ObjectStore.get),
    ("PUT", "partNumber", ObjectStore.put_part),
    ("PUT", "", ObjectStore.put_or_copy),
    ("POST", "delete", ObjectStore.delete_several),
    ("POST", "uploads", ObjectStore.begin_upload),
    ("POST", "uploadId", ObjectStore.complete_upload),
    ("DELETE", "uploadId", ObjectStore.abort_upload),
    ("DELETE", "", ObjectStore.delete),
)
"""Method, a parameter of the query, and the handler. The first match answers."""


def range_of(request: S3Request, size: int) -> range | None:
    """Returns the requested bytes, an empty range without any such byte, and None without a range."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
    if match is None or request.method == "HEAD":
        return None
    first, last = match.groups()
    if not first:
        return range(max(size - int(last), 0), size)
    return range(int(first), min(int(last) + 1, size) if last else size)


def iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def listed(key: str, stored: StoredObject) -> str:
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{iso_time(stored.modified_s)}</LastModified>"
        f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.content)}</Size></Contents>"
    )


class Server:
    """Listens on a port, logs requests, and fails as ordered."""

    def __init__(self, store: ObjectStore, port: int) -> None:
        self.store, self.port = store, port
        self.faults = Faults()
        self.log: list[tuple[str, str, int, float, float, int, int]] = []
        self.listening: asyncio.Server
        self.outage: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        # Bodies of requests have up to a few MiB.
        self.listening = await asyncio.start_server(
            self.serve_connection, "127.0.0.1", self.port, limit=1 << 24, backlog=1024
        )

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                request = await read_request(reader)
                reply = await self.reply_to(request)
                if reply is None:
                    writer.transport.abort()
                    return
                writer.write(head_of(reply))
                if request.method != "HEAD":
                    writer.write(reply.body)
                await writer.drain()
                if "transfer-encoding" in request.headers:
                    return  # The body is unread.
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # Clients close their connections without a notice, also in the middle of a request.
        finally:
            writer.close()

    async def reply_to(self, request: S3Request) -> S3Reply | None:
        """Returns the reply, or None if the connection breaks."""
        if request.path == FAULTS:
            self.faults = Faults(**json.loads(request.body))
            if self.faults.down_s or self.faults.down_while:
                self.start_outage(self.faults)
            return S3Reply()
        if request.path == REQUESTS:
            entries, self.log = self.log, []
            return S3Reply(body=json.dumps(entries).encode())
        began = time.time()
        if self.faults.latency_s:
            await asyncio.sleep(self.faults.latency_s)
        reply = self.execute(request)
        status, sent = (
            (BROKEN, 0)
            if reply is None
            else (reply.status, len(reply.body) * (request.method != "HEAD"))
        )
        self.log.append(
            (request.method, request.target, status, began, time.time(), len(request.body), sent)
        )
        return reply

    def execute(self, request: S3Request) -> S3Reply | None:
        faults, line = self.faults, f"{request.method} {request.target}"
        if self.outage is not None or faults.strikes(faults.reset, line):
            return None
        if faults.deny or self.is_expired(request):
            return refusal(403, "ExpiredToken")
        if random.random() < faults.error_rate:
            return refusal(503, "SlowDown")
        reply = self.store.answer(request)
        if faults.strikes(faults.lose, line):
            if faults.away_s:
                self.start_outage(Faults(down_s=faults.away_s))
            return None
        return reply

    def is_expired(self, request: S3Request) -> bool:
        key = EXPIRING_KEY.search(request.headers.get("authorization", ""))
        return not self.faults.lasting_keys if key is None else 1000 * time.time() > int(key[1])

    def start_outage(self, faults: Faults) -> None:
        self.listening.close()
        self.outage = asyncio.create_task(self.come_back(faults))

    async def come_back(self, faults: Faults) -> None:
        await asyncio.sleep(faults.down_s)
        while os.path.exists(faults.down_while):
            await asyncio.sleep(0.05)
        self.outage = None
        await self.listen()


async def read_request(reader: asyncio.StreamReader) -> S3Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    path, _, query = target.partition("?")
    return S3Request(method=method, path=unquote(path), query=query, headers=headers, body=body)


def head_of(reply: S3Reply) -> bytes:
    headers = {**reply.headers, "Content-Length": str(len(reply.body))}
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def serve(port: int, *, ignore_conditions: bool) -> None:
    await Server(ObjectStore(ignore_conditions=ignore_conditions), port).listen()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ignore-conditions", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, ignore_conditions=arguments.ignore_conditions))


if __name__ == "__main__":
    main()
