"""Tables that earlier commits wrote, and the programs that wrote them."""

from pathlib import Path

ARCHIVE = Path(__file__).parent / "stored_145927f.tar.gz"
"""A folder of tables that commit 145927f wrote."""
