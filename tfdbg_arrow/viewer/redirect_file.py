"""The file that opens the viewer in a browser, so that no command line contains the token.

Every user of a machine can see the command lines of all processes. The browser therefore gets the path of a file that
only its user can read, and the file leads it to the address.
"""

from __future__ import annotations

import contextlib
import html
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType


class RedirectFile(contextlib.AbstractContextManager["RedirectFile"]):
    """An HTML file in a directory of its own, which only the user can read; removed at the end of a with block."""

    def __init__(self) -> None:
        self._directory: str | None = None

    def write(self, url: str) -> str:
        """Writes the file.

        Args:
            url: The address to which the file leads.

        Returns:
            The `file:` URL to open.

        Raises:
            OSError: The file cannot be written.
        """
        # Only the owner can enter the directory.
        self._directory = tempfile.mkdtemp(prefix="tfdbg-arrow-view-")
        path = Path(self._directory) / "open.html"
        quoted = html.escape(url)
        text = (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>tfdbg-arrow view</title>'
            f'<meta http-equiv="refresh" content="0; url={quoted}"></head>'
            f'<body><p><a href="{quoted}">Open the viewer</a></p></body></html>\n'
        )
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path.as_uri()

    def remove(self) -> None:
        """Removes the file and its directory. May be called at any time and from any thread."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
