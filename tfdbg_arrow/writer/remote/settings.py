"""The settings of a recording whose logdir is a URL, which are checked once when it starts."""

from __future__ import annotations

import math
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import LogdirError, SettingError
from tfdbg_arrow.schema.location import RemoteDirectory, RemoteLocation

LOCAL_DIR_VARIABLE = "TFDBG_ARROW_LOCAL_DIR"
LOCAL_FLUSH_INTERVAL_S = 1.0
REMOTE_FLUSH_INTERVAL_S = 5.0
"""Longer than for a local logdir, because stores charge for each request and each part takes at least one."""
DEFAULT_UPLOAD_TIMEOUT_S = 60.0
DEFAULT_MAX_LOCAL_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class RemoteSettings:
    """Settings of a recording to a URL.

    Attributes:
        directory: The remote directory.
        upload_timeout_s: How long the end of the recording waits for the last uploads.
        max_local_bytes: Maximum bytes of parts that are kept locally.
    """

    directory: RemoteDirectory
    upload_timeout_s: float
    max_local_bytes: int


def check_remote(
    location: Path | RemoteLocation,
    *,
    storage_options: Mapping[str, Any] | None,
    local_dir: str | os.PathLike[str] | None,
    upload_timeout_s: float,
    max_local_bytes: int,
) -> RemoteSettings | None:
    """Returns the settings of a recording to a URL; None if the logdir is a path.

    This does not contact the store. The arguments have the same meaning as those of enable().

    Raises:
        SettingError: A value is not valid.
        LogdirError: The URL or the directory for local files cannot be used.
        MissingDependencyError: A package that is needed to open the URL is not installed.
    """
    timeout_s, max_bytes = upload_timeout_s, max_local_bytes
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 <= timeout_s < math.inf:
        raise SettingError(f"upload_timeout_s is {timeout_s!r}; expected seconds, 0 or more")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1 << 20:
        raise SettingError(f"max_local_bytes is {max_bytes!r}; expected at least 1048576 (1 MiB)")
    if not isinstance(location, RemoteLocation):
        for name, value in (("storage_options", storage_options), ("local_dir", local_dir)):
            if value is not None:
                raise SettingError(
                    f"{name} is given, but the logdir {location} is a local directory; expected a URL such as "
                    "s3://bucket/path, or remove this setting"
                )
        return None
    options = storage_options
    if options is not None and not isinstance(options, Mapping):
        raise SettingError(f"storage_options is a {type(options).__name__}; expected a dict of fsspec's arguments")
    _check_local_dir(_local_dir(local_dir))
    return RemoteSettings(
        directory=location.open(options), upload_timeout_s=float(timeout_s), max_local_bytes=max_bytes
    )


def local_logdir(local_dir: str | os.PathLike[str] | None) -> Path:
    """Returns a new path for the local logdir of a recording to a URL, in the directory that the user chose."""
    return _local_dir(local_dir) / f"tfdbg_arrow-{secrets.token_hex(8)}"


def _local_dir(local_dir: str | os.PathLike[str] | None) -> Path:
    chosen = local_dir if local_dir is not None else os.environ.get(LOCAL_DIR_VARIABLE) or tempfile.gettempdir()
    return Path(chosen).expanduser().absolute()


def _check_local_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogdirError(
            f"the directory {path} for local files cannot be created: {error.strerror or error}; choose another one "
            f"with local_dir= or the environment variable {LOCAL_DIR_VARIABLE}"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise LogdirError(
            f"the directory {path} for local files cannot be written; choose another one with local_dir= or the "
            f"environment variable {LOCAL_DIR_VARIABLE}"
        )
