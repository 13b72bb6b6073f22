"""Hooks of the site: notebooks, files of the root, the page of the command line, Sphinx roles."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md")
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
_ROLE = re.compile(r":(?:meth|class|func|attr|mod|exc|data|obj):(`)~?")
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Makes docstrings what mkdocstrings reads: sections of examples, and no roles of Sphinx."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Changes the docstring of an object."""
        if isinstance(obj, griffe.Object) and obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub("Examples:", _ROLE.sub(r"\1", obj.docstring.value))


def on_files(files: Any, config: Any) -> Any:
    """Adds notebooks, pages of the root, files behind links, and the page of the command line."""
    from mkdocs.structure.files import File

    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(
            File.generated(config, f"notebooks/{notebook.stem}.md", content=notebook_page(notebook))
        )
    sources = {
        page.src_uri: Path(page.abs_src_path)
        for page in files.documentation_pages()
        if page.abs_src_path
    }
    sources |= {f"project/{name}": ROOT / name for name in PAGES}
    for name in PAGES:
        files.append(
            File.generated(
                config, f"project/{name}", content=(ROOT / name).read_text(encoding="utf-8")
            )
        )
    for source in sources.values():
        for match in _LINK.finditer(source.read_text(encoding="utf-8")):
            target = (source.parent / match[2]).resolve()
            if (
                _is_outside(target)
                and target.name not in PAGES
                and f"project/{_name(target)}" not in files.src_uris
            ):
                files.append(
                    File.generated(config, f"project/{_name(target)}", content=target.read_bytes())
                )
    files.append(File.generated(config, "reference/command-line.md", content=command_line()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Points links to files outside of docs/, and links of the root's pages, at their copies."""
    del config, files
    uri = PurePosixPath(page.file.src_uri)
    source = ROOT / uri.name if uri.parts[0] == "project" else ROOT / "docs" / uri
    up = "../" * (len(uri.parts) - 1)

    def move(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve()
        if _is_outside(target):
            new_target = f"project/{_name(target)}"
        elif uri.parts[0] == "project" and target.is_relative_to(ROOT / "docs"):
            new_target = target.relative_to(ROOT / "docs").as_posix()
            new_target += "/README.md" if target.is_dir() else ""
        elif target.suffix == ".ipynb":
            return match[0].replace(".ipynb", ".md")
        else:
            return match[0]
        return f"{match[1]}{up}{new_target}{match[3] or ''}{match[4]}"

    return _LINK.sub(move, markdown)


def notebook_page(path: Path) -> str:
    """Returns a notebook as a page: its cells, with the outputs of the last run."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += map(_output, cell.get("outputs", ()))
    title, *rest = parts
    return (
        "\n\n".join((title, f'<a href="{path.name}" download>Download the notebook</a>', *rest))
        + "\n"
    )


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="Output of the cell" src="data:image/png;base64,{data["image/png"].strip()}">'
    if "text/html" in data:
        # A blank line would end the block of HTML.
        return "<div>" + re.sub(r"\n\s*\n", "\n", "".join(data["text/html"])) + "</div>"
    return f"```text\n{''.join(output.get('text') or data['text/plain'])}\n```"


def command_line() -> str:
    """Returns the page of the command line, from the help of its commands."""
    import typer

    from lance_spark.cli import app

    program: Any = typer.main.get_command(app)
    parts = ["# Command line", "Run `lance-spark COMMAND --help` for the same texts in a terminal."]
    for name, command in sorted(program.commands.items()):
        parts += [f"## lance-spark {name}", command.help or "", _arguments(command)]
    return "\n\n".join(parts) + "\n"


def _arguments(command: Any) -> str:
    rows = ["| argument | meaning |", "| --- | --- |"]
    for parameter in command.params:
        names = (
            parameter.opts + parameter.secondary_opts
            if parameter.param_type_name == "option"
            else []
        )
        parameter_names = ", ".join(f"`{name}`" for name in names) or f"`{parameter.name.upper()}`"
        text = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {parameter_names} | {text} |")
    return "\n".join(rows)


def _is_outside(target: Path) -> bool:
    return (
        target.is_relative_to(ROOT)
        and not target.is_relative_to(ROOT / "docs")
        and target.is_file()
    )


def _name(target: Path) -> str:
    return target.name if target.suffix == ".md" else target.relative_to(ROOT).as_posix()
