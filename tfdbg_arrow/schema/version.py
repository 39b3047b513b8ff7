"""The version of the format, and a check that this package can read a given version."""

from __future__ import annotations

import re
from pathlib import PurePath

from tfdbg_arrow.errors import FormatVersionError, LogdirError

FORMAT_VERSION = "2.3"
"""MAJOR.MINOR of the format, independent of the package's version."""

_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")


def parse_format_version(text: str, *, path: str | PurePath) -> tuple[int, int]:
    """Parses a format version.

    Args:
        text: `MAJOR.MINOR`, as found in a logdir.
        path: The file that contains the text. The error message names this file.

    Returns:
        (MAJOR, MINOR).

    Raises:
        LogdirError: The text does not have the form `MAJOR.MINOR`.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise LogdirError(
            f"{path} gives the format version {shown!r}, expected MAJOR.MINOR such as {FORMAT_VERSION!r}; "
            "the file is damaged or was not written by tfdbg_arrow."
        )
    return int(match[1]), int(match[2])


def check_format_version(text: str, *, path: str | PurePath) -> None:
    """Raises an error if this package cannot read a format version.

    A newer MINOR version is accepted. Such a version only adds columns and tables, and readers ignore these.

    Args:
        text: `MAJOR.MINOR`, as found in a logdir.
        path: The file that contains the text. The error message names this file.

    Raises:
        LogdirError: The text does not have the form `MAJOR.MINOR`.
        FormatVersionError: The MAJOR version is not the one that this package reads.

    Source:
        spec/README.md, "Versions".
    """
    major, _ = parse_format_version(text, path=path)
    readable_major, _ = parse_format_version(FORMAT_VERSION, path=path)
    if major != readable_major:
        release = "a newer" if major > readable_major else "an older"
        raise FormatVersionError(
            f"{path} gives the format version {text}, but this tfdbg_arrow reads only {readable_major}.x: install "
            f"{release} release of tfdbg_arrow, which reads format {major}.x; CHANGELOG.md says which."
        )
