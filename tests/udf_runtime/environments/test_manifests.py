"""Manifests and their builders: stored values, and errors before any storage."""

from __future__ import annotations

import json
import pickle
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_runtime import Manifest, UdfDefinitionError, udf
from udf_runtime.environments.installer import InstallError, _substitute
from udf_runtime.environments.manifest import current_python
from udf_runtime.environments.requirements import Requirements, check_manifest
from udf_runtime.environments.variables import Variables, resolve

texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\\#$"), min_size=1, max_size=20
)


@given(st.text(min_size=1), st.lists(texts), st.lists(texts), st.booleans(), texts)
def test_a_manifest_is_stored_whole(
    name: str, pip: list[str], links: list[str], no_index: bool, version: str
):
    manifest = Manifest(
        name=name,
        pip=tuple(pip),
        find_links=tuple(links),
        no_index=no_index,
        version=version,
        python_version="3.11",
    )
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert Manifest.from_dict(json.loads(manifest.to_json())).checksum == manifest.checksum
    assert pickle.loads(pickle.dumps(manifest)) == manifest


def test_the_checksum_is_of_what_makes_another_environment():
    def checksum(**more: object) -> str:
        values = {
            "name": "a",
            "pip": ("x==1",),
            "python_version": "3.11",
            "created_at": "then",
        } | more
        return Manifest(**values).checksum  # type: ignore[arg-type]

    same = {checksum(), checksum(name="b"), checksum(created_at="now"), checksum(created_by="me")}
    assert len(same) == 1
    variants = [
        {"pip": ("x==2",)},
        {"python_version": "3.12"},
        {"env_vars": ("A",)},
        {"version": "2"},
        {"index_url": "https://i"},
        {"no_index": True},
        {"skip_site_packages": True},
    ]
    assert len({checksum(**variant) for variant in variants} | same) == len(variants) + 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"format": 2}',
        '{"format": 1, "name": 3}',
        '{"format": 1, "pip": 5, "name": "x"}',
    ],
)
def test_a_damaged_or_newer_manifest_is_refused(text: str):
    with pytest.raises(UdfDefinitionError, match=r"argument payload=.* manifest"):
        Manifest.from_json(text)


def test_a_builder_gathers_all_that_the_specification_names(tmp_path: Path):
    (tmp_path / "more.txt").write_text("toolz==1.0.0  # fast\n--extra-index-url https://b/simple\n")
    (tmp_path / "requirements.txt").write_text(
        "attrs==24.2.0 \\\n  ; python_version > '3'\n-r more.txt\n--no-index\n"
    )
    (tmp_path / "mine.py").write_text("X = 1\n")
    manifest = (
        Manifest.create_pip("deps")
        .version("7")
        .requirements_path(str(tmp_path / "requirements.txt"))
        .index_url("https://user:${TOKEN}@a/simple")
        .find_links(["/wheels"])
        .py_modules([str(tmp_path / "mine.py")])
        .env_vars(["TOKEN"])
        .add_env_var("MODE", "quick")
        .build()
    )
    assert manifest.pip == ("attrs==24.2.0 ; python_version > '3'", "toolz==1.0.0")
    assert manifest.index_url == "https://user:${TOKEN}@a/simple" and manifest.extra_index_urls == (
        "https://b/simple",
    )
    assert manifest.no_index and manifest.find_links == ("/wheels",) and manifest.version == "7"
    assert manifest.env_vars == ("MODE", "TOKEN") and manifest.python_version == current_python()
    assert [archive.role for archive in manifest.archives] == ["modules"]
    assert "quick" not in manifest.to_json()
    assert Manifest.create_pip("x").pip(["a==1"]).add_pip("b==2").build().pip == ("a==1", "b==2")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Manifest.create_pip(""), "no name"),
        (lambda: Manifest.create_conda("x"), "conda.*spark.archives"),
        (lambda: Manifest.create_pip("x").pip("numpy"), "argument 'packages' has the wrong value"),
        (lambda: Manifest.create_pip("x").pip(["./here.whl"]).build(), "path of this machine"),
        (lambda: Manifest.create_pip("x").pip(["-e ."]).build(), "editable"),
        (
            lambda: Manifest.create_pip("x").pip(["--target /tmp"]).build(),
            "cannot be done on executors",
        ),
        (
            lambda: Manifest.create_pip("x").pip(["a @ https://u:secret@h/a.whl"]).build(),
            r"password.*\$\{NAME\}",
        ),
        (
            lambda: Manifest.create_pip("x").index_url("https://token@h/simple"),
            "password or a token",
        ),
        (
            lambda: Manifest.create_pip("x").requirements_path("/nowhere.txt").build(),
            "cannot be read",
        ),
        (
            lambda: Manifest.create_pip("x").pip(["a==1"]).requirements_path("r.txt").build(),
            "set the same",
        ),
        (
            lambda: Manifest.create_pip("x").py_modules(["no_such_module_here"]).build(),
            "is no module here",
        ),
        (lambda: Manifest.create_pip("x").python_version("3"), "minor version"),
        (lambda: Manifest.create_pip("x").env_vars(["A B"]), "cannot be an environment variable"),
        (
            lambda: Manifest.create_pip("x").env_vars(["PYTHONPATH"]),
            "cannot be an environment variable",
        ),
        (lambda: Manifest.create_pip("x").env_vars({"A": 3}), "value of A in env_vars is int"),  # type: ignore[dict-item]
    ],
)
def test_unsupported_requirements_are_refused_with_an_alternative(make, message: str):
    with pytest.raises(UdfDefinitionError, match=message):
        make()


SECRETS = [
    "https://user:pw@host/simple", "https://user:p/w@host/", "https://token@host/", "https://token:@host/", "https://:pw@host/", "HTTPS://U:P@host",
    "https://us er:pw@host", "https://user:${P}x@host", "https://host/simple?token=abc", "https://host/simple?x=1&private_token=abc",
    "https://host/x.whl#access_key=abc", "https://host/?sv=1&sig=abc", "git+https://oauth2:tok@gitlab.com/x", "https://host?X-Amz-Signature=00",
    "https://[::1]:pw@host/",
]  # fmt: skip
NO_SECRETS = [
    "https://host:8080/simple", "https://[::1]:8080/simple", "https://${T}@host/", "https://user:${T}@host/", "git+ssh://git@github.com/x",
    "git+https://github.com/a/b@v1.2", "https://host/?token=${T}", "https://host/x.whl#sha256=00", "git+https://host/r#egg=a&subdirectory=b",
]  # fmt: skip
PLACES = {
    "pip": lambda url: Manifest.create_pip("x").pip([f"a @ {url}"]).build(),
    "add_pip": lambda url: Manifest.create_pip("x").add_pip(f"a @ {url}").build(),
    "index_url": lambda url: Manifest.create_pip("x").index_url(url),
    "extra_index_url": lambda url: Manifest.create_pip("x").add_extra_index_url(url),
    "find_links": lambda url: Manifest.create_pip("x").find_links([url]),
    "option": lambda url: Manifest.create_pip("x").pip([f"--extra-index-url {url}"]).build(),
    "a manifest without a builder": lambda url: check_manifest(
        Manifest(name="x", python_version="3.11", extra_index_urls=(url,))
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_url_with_a_secret_is_refused_in_every_place(place: str):
    for url in SECRETS:
        with pytest.raises(UdfDefinitionError, match=r"in clear.*\$\{NAME\}"):
            PLACES[place](url)
    for url in NO_SECRETS:
        PLACES[place](url)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"], ids=ascii)
def test_a_requirement_is_one_line(place: str, end: str):
    with pytest.raises(UdfDefinitionError, match="one line"):
        PLACES[place](f"https://host/a{end}--index-url https://elsewhere")
    with pytest.raises(UdfDefinitionError, match="one line"):
        PLACES[place](f"https://host/a \\{end}--trusted-host elsewhere")


@pytest.mark.parametrize(
    "value", ["1\n--index-url https://elsewhere", "1 --hash x", "", "1\u2028"], ids=ascii
)
def test_the_value_of_a_variable_adds_no_line_to_requirements(value: str):
    with pytest.raises(InstallError, match="environment variable V is empty or has white space"):
        _substitute(["pkg==${V}"], Variables({"V": value}))
    assert _substitute(["pkg==${W}"], Variables({"V": value, "W": "1"})) == b"pkg==1\n"


def test_packages_without_a_version_are_warned_of():
    builder = Manifest.create_pip("x").pip(["numpy", "attrs==24.2.0", "toolz>=1", "b==1.*"])
    with pytest.warns(UserWarning, match=r"numpy, toolz>=1, b==1\.\*"):
        builder.build()
    builder.allow_unpinned().build()


@given(st.lists(st.from_regex(r"[a-z][a-z0-9]{0,8}(==[0-9]\.[0-9])?", fullmatch=True)))
def test_comments_blank_lines_and_continuations_change_no_requirement(names: list[str]):
    plain, commented = Requirements(), Requirements()
    plain.add(names, where="pip")
    commented.add(
        [
            line
            for name in names
            for line in ("", "# note", f"  {name[:1]}\\", f"{name[1:]}  # why")
        ],
        where="pip",
    )
    assert [line.replace(" ", "") for line in commented.pip] == plain.pip


def test_values_of_variables_are_never_in_clear_but_where_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
):
    manifest = (
        Manifest.create_pip("v")
        .env_vars({"A": "secret-a", "B": lambda: "secret-b"})
        .add_env_var("C")
        .build()
    )
    with pytest.raises(UdfDefinitionError, match="variable C has no value"):
        resolve(manifest)
    monkeypatch.setenv("C", "secret-c")
    values = resolve(manifest)
    assert values.in_clear() == {"A": "secret-a", "B": "secret-b", "C": "secret-c"}
    packed = pickle.dumps(values)
    assert b"secret" not in packed and "secret" not in repr(values) + manifest.to_json() + repr(
        manifest
    )
    assert pickle.loads(packed) == values and hash(pickle.loads(packed)) == hash(values)
    assert values.redact("of secret-a and secret-b") == "of *** and ***"
    assert values.shows_in(b"..secret-c..") and not Variables().shows_in(b"x")
    # Built by another process, the manifest takes its variables from the environment.
    again = Manifest.from_json(manifest.to_json().replace('"v"', '"w"'))
    assert resolve(again).in_clear()["A"] == "secret-a"  # the same content, built here


PRINTED: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "repr": lambda value: repr([value]),
    "JSON": lambda value: json.dumps({"key": value}),
    "JSON without escapes": lambda value: json.dumps({"key": value}, ensure_ascii=False),
    "indented": lambda value: textwrap.indent(value, "    "),
    "without its end": lambda value: value.rstrip(),
}
LINES = st.lists(st.text(st.sampled_from("abcXYZ019+/=\"'\\\\ \té"), min_size=8, max_size=30).filter(
    lambda line: len(line.strip()) >= 8), min_size=1, max_size=5)  # fmt: skip


@given(LINES, st.sampled_from(["\n", "\r\n", "\\n"]), st.sampled_from(sorted(PRINTED)))
def test_no_line_of_a_value_is_shown_however_it_is_printed(
    lines: list[str], end: str, printed: str
):
    values = Variables({"KEY": end.join([*lines, ""])})
    text = PRINTED[printed](values.in_clear()["KEY"])
    assert values.shows_in(text.encode())
    for redacted in (values.redact(text), "\n".join(map(values.redact, text.splitlines()))):
        assert not any(
            form in redacted for line in lines for form in (line.strip(), repr(line)[1:-1].strip())
        )
        assert "***" in redacted and not values.shows_in(redacted.encode())


def test_a_key_within_a_json_value_is_hidden_by_its_lines():
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n"
    for value in (
        json.dumps({"id": "me", "private_key": key}),
        json.dumps({"private_key": key}, indent=2),
    ):
        values = Variables({"ACCOUNT": value})
        for text in (json.loads(value)["private_key"], value, repr(value)):
            redacted = values.redact(f"it was {text}")
            assert (
                "MIIEvQ" not in redacted
                and "hkiG9w" not in redacted
                and redacted.startswith("it was ")
            )
            assert values.shows_in(text.encode())


def test_short_or_common_values_are_not_hidden():
    values = Variables({"A": "abc", "B": "{\n}\nyes\nno\n", "C": "\n\n"})
    text = "abc {\n} yes, no"
    assert values.redact(text) == text and not values.shows_in(text.encode())
    assert Variables({"A": "four\n"}).redact("four five") == "*** five"


def test_a_function_of_another_python_version_has_to_come_from_a_module():
    other_manifest = Manifest.create_pip("x").python_version("3.99").build()

    def by_value(x: int) -> int:
        return x

    with pytest.raises(
        UdfDefinitionError, match=r"compiled by Python .* asks for 3\.99.*py_modules"
    ):
        udf(data_type=pa.int64(), manifest=other_manifest)(by_value)
    import statistics

    module_udf = udf(
        data_type=pa.float64(), input_columns=["x"], manifest=other_manifest, version="1"
    )(statistics.fmean)
    assert module_udf.manifest == other_manifest  # type: ignore[union-attr]


def test_a_udf_is_unpickled_without_its_code():
    """Its imports exist only in its own process."""

    class Needs:
        def __init__(self) -> None:
            self.state = 1

        def __call__(self, x: int) -> int:
            return x + self.state

    needy_udf = udf(data_type=pa.int64(), manifest=Manifest.create_pip("x").build())(Needs)()
    copy = type(needy_udf).loads(needy_udf.dumps())
    assert (
        copy.manifest == needy_udf.manifest and copy.version == needy_udf.version and copy(1) == 2
    )
