"""Tables written by earlier commits, and the programs that wrote them."""

from pathlib import Path

ARCHIVE = Path(__file__).parent / "stored_145927f.tar.gz"
"""A folder of tables written by commit 145927f."""
