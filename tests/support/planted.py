"""Foreign files, links and folders in and around a table, and a picture of all of them."""

from __future__ import annotations

import os
from pathlib import Path

FOREIGN = (
    *(
        "notes.txt",
        "data/customers.csv",
        "data/model.lance/weights",
        "data/deep/image.png",
        "_versions/readme",
    ),
    *(
        "_versions/1.manifest.bak",
        "_transactions/ledger.txn",
        "_indices/mine/page.lance",
        "_refs/heads/main",
    ),
    *(
        "_deletions/list.arrow",
        "tree/oak/leaf.txt",
        "tree/oak/data/ring.txt",
        "other.lance/_versions/1.manifest",
    ),
    *(
        "_lance_spark/notes",
        "_lance_spark/staging/job/open",
        "_lance_spark/jobs/mine/heartbeat",
        ".hidden",
    ),
    *("_lance_spark/checkpoints/a/b.txt", "_lance_spark/own.lance/data/a.lance"),
)
"""Foreign names that resemble a table's own names."""

LINKS = ("link", "data/linked", "_versions/linked", "_lance_spark/staging/linked", "tree/linked")


def plant(folder: Path, victim: Path) -> None:
    """Puts foreign files into a table's folder, and links to a folder outside the table."""
    for name in FOREIGN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"of others: {name}")
    (victim / "deep").mkdir(parents=True, exist_ok=True)
    for name in ("a.lance", "deep/b.txt"):
        (victim / name).write_text("of the victim")
    for name in LINKS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(victim)


def picture(root: Path) -> dict[str, object]:
    """Returns the content of every file, and the target of every link, below a folder."""
    entries: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            key = str(path.relative_to(root))
            if path.is_symlink():
                entries[key] = os.readlink(path)
            elif path.is_file():
                entries[key] = path.read_bytes()
    return entries
