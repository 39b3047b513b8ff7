"""The version of the format, and the versions that this package reads."""

from __future__ import annotations

import re
from pathlib import PurePath

from tfdbg_arrow.errors import FormatVersionError, LogdirError

FORMAT_VERSION = "1.4"
"""MAJOR.MINOR of the format, independent of the package's version."""

_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")


def parse_format_version(text: str, *, path: str | PurePath) -> tuple[int, int]:
    """Parses a format version.

    Args:
        text: `MAJOR.MINOR`, as found in a logdir.
        path: The file that holds it, for the message.

    Returns:
        (MAJOR, MINOR).

    Raises:
        LogdirError: The text does not have this form.
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

    A newer MINOR version is accepted: it only adds columns and tables, which readers ignore.

    Args:
        text: `MAJOR.MINOR`, as found in a logdir.
        path: The file that holds it, for the message.

    Raises:
        LogdirError: The text does not have this form.
        FormatVersionError: The MAJOR version differs from this package's.

    Source:
        spec/README.md, "Versions".
    """
    major, _ = parse_format_version(text, path=path)
    own_major, _ = parse_format_version(FORMAT_VERSION, path="tfdbg_arrow")
    if major != own_major:
        raise FormatVersionError(
            f"{path} gives the format version {text}, but this tfdbg_arrow reads only {own_major}.x: "
            f"install a tfdbg_arrow that reads format {major}.x "
            f"({'a newer' if major > own_major else 'an older'} release; CHANGELOG.md says which)."
        )
