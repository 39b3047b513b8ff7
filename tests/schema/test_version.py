"""Test that a logdir of another major version is refused with advice and that a newer minor version is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.errors import FormatVersionError, LogdirError
from tfdbg_arrow.schema import FORMAT_VERSION, check_format_version
from tfdbg_arrow.schema.version import parse_format_version

MAJOR, MINOR = parse_format_version(FORMAT_VERSION, path="here")


@pytest.mark.parametrize("text", [FORMAT_VERSION, f"{MAJOR}.0", f"{MAJOR}.{MINOR + 7}"])
def test_any_minor_version_is_read(text: str) -> None:
    check_format_version(text, path="tfdbg_arrow.json")


def test_the_error_for_a_newer_major_version_names_the_version_to_install() -> None:
    with pytest.raises(FormatVersionError) as caught:
        check_format_version(f"{MAJOR + 1}.3", path=Path("logs/tfdbg_arrow.json"))
    assert str(caught.value) == (
        f"logs/tfdbg_arrow.json gives the format version {MAJOR + 1}.3, but this tfdbg_arrow reads only {MAJOR}.x: "
        f"install a newer release of tfdbg_arrow, which reads format {MAJOR + 1}.x; CHANGELOG.md says which."
    )


def test_the_error_for_an_older_major_version() -> None:
    with pytest.raises(FormatVersionError, match="install an older release of tfdbg_arrow"):
        check_format_version(f"{MAJOR - 1}.9", path="x")


@pytest.mark.parametrize(
    "text", ["", "1", "1.", "1.0.0", "v1.0", " 1.0", "1.0\n", "01.0", "-1.0", "1.٣", "9" * 5000 + ".0"]
)
def test_a_malformed_version_is_a_damaged_logdir_and_not_a_version_error(text: str) -> None:
    with pytest.raises(LogdirError, match=r"expected MAJOR.MINOR such as") as caught:
        check_format_version(text, path="x")
    assert not isinstance(caught.value, FormatVersionError)
    assert len(str(caught.value)) < 250
