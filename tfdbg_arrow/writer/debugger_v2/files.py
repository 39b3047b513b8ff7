"""Finds the file sets of Debugger V2 in a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import DumpError, LogdirError
from tfdbg_arrow.schema.logdir_layout import MARKER_NAME
from tfdbg_arrow.schema.own_files import OwnFiles
from tfdbg_arrow.writer.debugger_v2.records import FILES

_NAME = re.compile(rf"(?P<prefix>.+)\.(?P<suffix>{'|'.join(FILES)})", re.DOTALL)
_PREFIX = re.compile(r".*?\.(?P<seconds>\d{1,12})\.(?P<host>.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """The files that one process wrote in one recording.

    Attributes:
        prefix: Common prefix of the file names, without the directory: `tfdbg_events.<seconds>.<host>`.
        paths: Paths of the existing files, by suffix.
        sizes: Sizes in bytes, by suffix.
    """

    prefix: str
    paths: Mapping[str, Path]
    sizes: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(self.sizes.values())

    @property
    def seconds(self) -> int:
        """Start of the recording according to the prefix, in seconds since 1970-01-01T00:00:00Z; 0 if unknown."""
        found = _PREFIX.fullmatch(self.prefix)
        return 0 if found is None else int(found["seconds"])

    @property
    def host_name(self) -> str | None:
        """Host according to the prefix; None if unknown."""
        found = _PREFIX.fullmatch(self.prefix)
        return None if found is None else found["host"]


def find_file_sets(dump: str | os.PathLike[str]) -> tuple[FileSet, ...]:
    """Returns the file sets in a directory, by prefix.

    Raises:
        DumpError: The path is not a readable directory, contains no files of a dump, or contains a link that leads out
            of it.
    """
    directory = Path(dump)
    if not directory.exists():
        raise DumpError(f"the dump {directory} does not exist; give the dump_root that Debugger V2 wrote to")
    if not directory.is_dir():
        raise DumpError(f"the dump {directory} is a file; give the directory that Debugger V2 wrote to")
    if (directory / MARKER_NAME).exists():
        raise DumpError(
            f"{directory} is a logdir of tfdbg_arrow, not a dump of Debugger V2; it can be read without an import"
        )
    found: dict[str, dict[str, Path]] = {}
    sizes: dict[str, dict[str, int]] = {}
    own_files = OwnFiles(directory)
    try:
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            match = _NAME.fullmatch(entry.name)
            if match is not None and entry.is_file():
                own_files.check([entry.path])
                found.setdefault(match["prefix"], {})[match["suffix"]] = Path(entry.path)
                sizes.setdefault(match["prefix"], {})[match["suffix"]] = entry.stat().st_size
    except LogdirError as error:
        raise DumpError(str(error)) from error
    except OSError as error:
        raise DumpError(
            f"the dump {directory} cannot be read ({error.strerror or error}); check its permissions"
        ) from error
    if not found:
        raise DumpError(
            f"{directory} holds no dump of Debugger V2, expected files such as tfdbg_events.<seconds>.<host>.metadata; "
            "give the dump_root of the recording"
        )
    return tuple(
        FileSet(
            prefix=prefix,
            paths={suffix: paths[suffix] for suffix in FILES if suffix in paths},
            sizes={suffix: sizes[prefix][suffix] for suffix in FILES if suffix in paths},
        )
        for prefix, paths in sorted(found.items())
    )
