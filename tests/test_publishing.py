"""What is published agrees with itself: requirements, placeholders, workflows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def requirements(texts: list[str]) -> set[tuple[str, frozenset[str]]]:
    """Returns names with their bounds, in any order and spacing."""
    parts = [re.fullmatch(r"([\w-]+)\s*(.*)", text) for text in texts]
    return {(part[1], frozenset(part[2].replace(" ", "").split(","))) for part in parts if part}


def test_the_recipe_of_conda_has_the_requirements_of_the_project() -> None:
    text = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    assert f'version: "{PROJECT["version"]}"' in text
    listed = re.findall(r"^    - (.+)$", text.split("  run:\n")[1].split("\n\n")[0], re.MULTILINE)
    ours = requirements(PROJECT["dependencies"])
    assert {item for item in requirements(listed) if item[0] not in ("python", "openjdk")} == ours


def test_every_requirement_has_both_bounds() -> None:
    assert [
        text
        for text in PROJECT["dependencies"]
        if not re.fullmatch(r"[\w-]+>=[\d.]+,<[\d.]+", text)
    ] == []


def test_placeholders_stand_in_one_place() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob(".github/**/*.*"),
        ROOT / "conda/recipe.yaml",
    ]
    assert [page.name for page in pages if ".invalid" in page.read_text(encoding="utf-8")] == []


def test_each_job_of_the_workflows_is_one_target_of_make() -> None:
    targets = set(
        re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for workflow in WORKFLOWS:
        jobs = re.split(
            r"^  [a-z]+:\n    name: ", workflow.read_text(encoding="utf-8"), flags=re.MULTILINE
        )[1:]
        assert jobs, workflow
        for job in jobs:
            commands = re.findall(r"run: (.*)", job)
            assert len(commands) == 1, (workflow.name, commands)
            assert commands[0].startswith("make "), (workflow.name, commands)
            for target in commands[0].split()[1:]:
                if target == '"$TARGET"':
                    assert set(re.search(r"target: \[(.*)\]", job)[1].split(", ")) <= targets  # type: ignore[index]
                else:
                    assert target.strip('"') in targets or target.strip('"').startswith(
                        "test-release-"
                    ), target


def test_the_page_of_the_canary_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "canary.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    names = set(re.findall(r"`(test_\w+)`", page))
    assert len(names) > 10
    assert {name for name in names if f"def {name}(" not in code} == set()
    assert [
        path for path in re.findall(r"`(tests/[\w/.]+)`", page) if not (ROOT / path).exists()
    ] == []


def test_actions_are_pinned_by_commit() -> None:
    for workflow in WORKFLOWS:
        used = re.findall(r"uses: (\S+)", workflow.read_text(encoding="utf-8"))
        assert [
            name for name in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name)
        ] == []
