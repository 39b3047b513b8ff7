"""The version of the format, and the versions that this package reads."""

from __future__ import annotations

import re
from pathlib import PurePath

from tfdbg_arrow.errors import FormatVersionError, LogdirError

FORMAT_VERSION = "2.3"
"""MAJOR.MINOR of the format, independent of the package's version."""
READABLE_MAJORS = (1, 2)
"""The MAJOR versions that this package reads. It writes only the last one."""

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
        FormatVersionError: The MAJOR version is not one of READABLE_MAJORS.

    Source:
        spec/README.md, "Versions".
    """
    major, _ = parse_format_version(text, path=path)
    if major not in READABLE_MAJORS:
        readable = " and ".join(f"{each}.x" for each in READABLE_MAJORS)
        release = "a newer" if major > max(READABLE_MAJORS) else "an older"
        raise FormatVersionError(
            f"{path} gives the format version {text}, but this tfdbg_arrow reads only {readable}: install {release} "
            f"release of tfdbg_arrow, which reads format {major}.x; CHANGELOG.md says which."
        )


def is_writable_version(text: str, *, path: str | PurePath) -> bool:
    """Returns whether this package can add runs to a logdir of a format version; arguments and errors as above."""
    return parse_format_version(text, path=path)[0] == max(READABLE_MAJORS)


def check_writable_version(text: str, *, path: str | PurePath, logdir: object) -> None:
    """Raises an error if nothing can be added to a logdir of a format version.

    Args:
        text: `MAJOR.MINOR`, as found in a logdir.
        path: The file that holds it, for the message.
        logdir: The logdir, for the message.

    Raises:
        LogdirError: The text does not have this form.
        FormatVersionError: The MAJOR version is an older one.
    """
    if not is_writable_version(text, path=path):
        raise FormatVersionError(
            f"{path} gives the format version {text}, and nothing can be added to such a logdir in format "
            f"{FORMAT_VERSION}: run `tfdbg-arrow upgrade {logdir}`, or choose another directory."
        )
