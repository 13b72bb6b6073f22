"""The S3 server of the tests answers as S3 does, so that a fault of a client is no fault of the server."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.object_stores.s3_server import MIN_PART_BYTES, ObjectStore, S3Reply, S3Request, Server
from tests.support.processes import free_port

DIGITS = b"0123456789"


def ask(store: ObjectStore, method: str, target: str, body: bytes = b"", **headers: str) -> S3Reply:
    path, _, query = target.partition("?")
    named_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return store.answer(
        S3Request(method=method, path=path, query=query, headers=named_headers, body=body)
    )


@pytest.fixture
def store() -> ObjectStore:
    """A store with an object of ten bytes."""
    store = ObjectStore(ignore_conditions=False)
    ask(store, "PUT", "/b")
    ask(store, "PUT", "/b/digits", DIGITS)
    return store


def texts(reply: S3Reply, path: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(reply.body).iterfind(path)]


@pytest.mark.parametrize(
    ("key", "headers", "status"),
    [
        ("digits", {"if_none_match": "*"}, 412),
        ("absent", {"if_none_match": "*"}, 200),
        ("digits", {"if_match": '"0"'}, 412),
        ("digits", {}, 200),
    ],
)
@pytest.mark.parametrize("kind", ["put", "copy", "multipart"])
def test_conditional_writes_take_effect_or_change_nothing(
    store: ObjectStore, kind: str, key: str, headers: dict[str, str], status: int
) -> None:
    ask(store, "PUT", "/b/source", b"new")
    target = f"/b/{key}"
    if kind == "put":
        reply = ask(store, "PUT", target, b"new", **headers)
    elif kind == "copy":
        reply = ask(store, "PUT", target, x_amz_copy_source="/b/source", **headers)
    else:
        upload, parts = begin_upload(store, target, [b"new"])
        reply = complete(store, target, upload, parts, **headers)
    assert reply.status == status
    content = ask(store, "GET", target).body
    assert (content == b"new") == (status == 200)
    assert key != "digits" or content in (b"new", DIGITS)


def test_a_write_on_the_read_state_takes_effect_once(store: ObjectStore) -> None:
    etag = ask(store, "HEAD", "/b/digits").headers["ETag"]
    assert [ask(store, "PUT", "/b/digits", b"new", if_match=etag).status for _ in range(2)] == [
        200,
        412,
    ]
    careless = ObjectStore(ignore_conditions=True)
    ask(careless, "PUT", "/b")
    assert [ask(careless, "PUT", "/b/k", b"", if_none_match="*").status for _ in range(2)] == [
        200,
        200,
    ]


@pytest.mark.parametrize(
    ("text", "content", "content_range"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=8-", b"89", "bytes 8-9/10"),
        ("bytes=8-100", b"89", "bytes 8-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-100", DIGITS, "bytes 0-9/10"),
        ("bytes=10-", None, None),
        ("bytes=10-20", None, None),
        ("bytes=-0", None, None),
    ],
)
def test_a_range_has_its_bytes_or_is_refused(
    store: ObjectStore, text: str, content: bytes | None, content_range: str | None
) -> None:
    reply = ask(store, "GET", "/b/digits", range=text)
    if content is None:
        assert reply.status == 416
    else:
        assert (reply.status, reply.body, reply.headers["Content-Range"]) == (
            206,
            content,
            content_range,
        )


def begin_upload(
    store: ObjectStore, target: str, contents: list[bytes]
) -> tuple[str, list[tuple[int, str]]]:
    """Uploads parts, the last part first, and returns the id of the upload with numbers and tags of the parts."""
    (upload,) = texts(ask(store, "POST", f"{target}?uploads="), "{*}UploadId")
    parts = []
    for number in range(len(contents), 0, -1):
        reply = ask(
            store, "PUT", f"{target}?partNumber={number}&uploadId={upload}", contents[number - 1]
        )
        parts.append((number, reply.headers["ETag"]))
    return upload, parts[::-1]


def complete(
    store: ObjectStore, target: str, upload: str, parts: list[tuple[int, str]], **headers: str
) -> S3Reply:
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in parts
    )
    body = f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{listed}</CompleteMultipartUpload>'
    return ask(store, "POST", f"{target}?uploadId={upload}", body.encode(), **headers)


def test_an_upload_has_the_listed_parts_in_order(store: ObjectStore) -> None:
    large = b"x" * MIN_PART_BYTES
    upload, parts = begin_upload(store, "/b/k", [large, b"end", b"forgotten"])
    assert complete(store, "/b/k", upload, parts[:2]).status == 200
    assert ask(store, "GET", "/b/k").body == large + b"end"
    assert complete(store, "/b/k", upload, parts).status == 404, "the upload has ended"


@pytest.mark.parametrize("fault", ["absent part", "other tag", "small part", "no part", "aborted"])
def test_a_wrong_completion_makes_no_object(store: ObjectStore, fault: str) -> None:
    upload, parts = begin_upload(
        store, "/b/k", [b"small", b"end"] if fault == "small part" else [b"only"]
    )
    if fault == "aborted":
        assert ask(store, "DELETE", f"/b/k?uploadId={upload}").status == 204
    wrong_parts = {
        "absent part": [*parts, (7, parts[0][1])],
        "other tag": [(1, '"0"')],
        "no part": [],
    }
    assert complete(store, "/b/k", upload, wrong_parts.get(fault, parts)).status in (400, 404)
    assert ask(store, "GET", "/b/k").status == 404


def pages(store: ObjectStore, parameters: dict[str, str]) -> Iterator[S3Reply]:
    token: dict[str, str] = {}
    while True:
        reply = ask(store, "GET", f"/b?{urlencode({'list-type': '2', **parameters, **token})}")
        yield reply
        if texts(reply, "{*}IsTruncated") == ["false"]:
            return
        token = {"continuation-token": texts(reply, "{*}NextContinuationToken")[0]}


@given(
    st.sets(st.text("a/é&+ ", min_size=1, max_size=5), max_size=12),
    st.text("a/é", max_size=2),
    st.text("a/é", max_size=3),
    st.sampled_from(["", "/"]),
    st.integers(1, 4),
)
def test_the_pages_of_a_list_have_each_key_and_each_folder_once(
    keys: set[str], prefix: str, after: str, delimiter: str, limit: int
) -> None:
    store = ObjectStore(ignore_conditions=False)
    ask(store, "PUT", "/b")
    for key in keys:
        ask(store, "PUT", f"/b/{key}", key.encode())
    parameters = {
        "prefix": prefix,
        "start-after": after,
        "delimiter": delimiter,
        "max-keys": str(limit),
    }
    replies = list(pages(store, parameters))
    chosen_keys = sorted(key for key in keys if key.startswith(prefix) and key > after)
    folders = {
        key[: key.index(delimiter, len(prefix)) + 1]
        for key in chosen_keys
        if delimiter and delimiter in key[len(prefix) :]
    }
    files = [key for key in chosen_keys if not any(key.startswith(folder) for folder in folders)]
    assert [key for reply in replies for key in texts(reply, "{*}Contents/{*}Key")] == files
    assert [
        key for reply in replies for key in texts(reply, "{*}CommonPrefixes/{*}Prefix")
    ] == sorted(folders)
    assert all(int(texts(reply, "{*}KeyCount")[0]) <= limit for reply in replies)


def test_several_objects_are_deleted_by_their_keys(store: ObjectStore) -> None:
    ask(store, "PUT", "/b/a&b", b"x")
    body = b"<Delete><Object><Key>a&amp;b</Key></Object><Object><Key>absent</Key></Object></Delete>"
    assert texts(ask(store, "POST", "/b?delete=", body), "{*}Deleted/{*}Key") == ["a&b", "absent"]
    assert list(store.buckets["b"].objects) == ["digits"]


def test_a_connection_serves_requests_after_a_refusal() -> None:
    port = free_port()

    def talk() -> list[tuple[int, str | None, bytes]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        replies = []
        for method, path, body in [
            ("PUT", "/b", b""),
            ("PUT", "/b/k", b"value"),
            ("HEAD", "/b/absent", None),
            ("HEAD", "/b/k", None),
            ("GET", "/b/absent", None),
            ("DELETE", "/b/absent", None),
            ("GET", "/b/k", None),
        ]:
            connection.request(method, path, body)
            reply = connection.getresponse()
            replies.append((reply.status, reply.getheader("Content-Length"), reply.read()))
        connection.putrequest("PUT", "/b/k")  # the server ends the connection at this header
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        replies.append((connection.getresponse().status, None, b""))
        connection.close()
        return replies

    async def serve() -> list[tuple[int, str | None, bytes]]:
        server = Server(ObjectStore(ignore_conditions=False), port)
        await server.listen()
        replies = await asyncio.to_thread(talk)
        server.listening.close()
        return replies

    created, put, absent, head, missing, deleted, got, chunked = asyncio.run(serve())
    assert [created[0], put[0], absent[0], missing[0], deleted[0], chunked[0]] == [
        200,
        200,
        404,
        404,
        204,
        501,
    ]
    assert absent[2] == b"" and missing[2] != b""
    assert head == (200, "5", b"") and got == (200, "5", b"value")
