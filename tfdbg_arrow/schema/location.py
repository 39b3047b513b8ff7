"""Where a logdir lies: a directory here, or a URL that fsspec opens.

Credentials are fsspec's own business: its options, its configuration files, the environment variables of the store's
client.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tfdbg_arrow.errors import LogdirError, MissingDependencyError, TfdbgArrowError
from tfdbg_arrow.schema.logdir_layout import TEMPORARY_SUFFIX

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.:_-]*)://(.*)", re.DOTALL)
_URL_THAT_WAS_A_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_LOCAL_PROTOCOLS = frozenset({"file", "local"})
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **dict.fromkeys(("hf",), "huggingface_hub"),
    **dict.fromkeys(("oci",), "ocifs"),
    **dict.fromkeys(("oss",), "ossfs"),
}
"""What to install for a protocol."""
_REPLACES_WHOLE = frozenset({*_PACKAGES, "memory"} - {"sftp", "ssh"})
"""Protocols of stores in which an object that is written appears whole, in the place of the one before."""
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class RemoteLocation:
    """A logdir at a URL.

    Attributes:
        url: The URL, without a slash at its end.
        protocol: What stands before `://`, in lower case.
    """

    url: str
    protocol: str

    def __str__(self) -> str:
        """Returns the URL as it can be shown: without a password."""
        return _PASSWORD.sub(r"\1:***@", self.url)

    def __repr__(self) -> str:
        return f"RemoteLocation({str(self)!r})"

    def open(self, storage_options: Mapping[str, Any] | None = None) -> RemoteDirectory:
        """Returns the directory at the URL, which need not exist; nothing is asked of the store yet.

        Args:
            storage_options: fsspec's arguments for this protocol; None: its configuration's.

        Raises:
            MissingDependencyError: fsspec, or its package for the protocol, is not installed.
            LogdirError: The protocol is not known, or its file system refuses the options.
        """
        fsspec = _import_fsspec(self)
        try:
            kind = fsspec.get_filesystem_class(self.protocol)
        except ImportError as error:
            package = _PACKAGES.get(self.protocol)
            hint = f"run: pip install {package}" if package else "install it"
            raise MissingDependencyError(
                f"{self} needs a package that is not installed ({_first_line(error)}); {hint}"
            ) from error
        except ValueError as error:
            raise LogdirError(
                f"{self} has the protocol {self.protocol!r}, which fsspec does not know; expected one as s3://, gs://, "
                "abfs:// or hdfs://, or a directory's path."
            ) from error
        options = dict(storage_options or {})
        if issubclass(kind, fsspec.asyn.AsyncFileSystem):
            options.setdefault("loop", _event_loop(os.getpid()))
        with described(f"{self} cannot be opened"):
            file_system, root = fsspec.core.url_to_fs(
                self.url, **{"skip_instance_cache": True, "use_listings_cache": False, **options}
            )
        return RemoteDirectory(self, file_system, root)


class RemoteDirectory:
    """A directory of a remote file system; names in it are relative to it and use `/`.

    What goes wrong is raised as the file system gives it; `described` makes one sentence of it.

    Attributes:
        location: Where it is.
        is_concurrent: Whether several threads may use it at once.
    """

    def __init__(self, location: RemoteLocation, file_system: Any, root: str) -> None:
        self.location = location
        self._fs, self._root = file_system, root.rstrip("/")
        self._replaces_whole = location.protocol in _REPLACES_WHOLE
        self.is_concurrent = bool(getattr(file_system, "async_impl", False))

    def __str__(self) -> str:
        return str(self.location)

    def read_bytes(self, name: str) -> bytes:
        """Returns the content of a file.

        Raises:
            FileNotFoundError: It is not there.
        """
        content: bytes = self._fs.cat_file(self._path(name))
        return content

    def write_bytes(self, name: str, content: bytes) -> None:
        """Writes a file: a reader finds the one before or the new one, never half of it."""
        self._put_whole(name, lambda path: self._fs.pipe_file(path, content))

    def upload(self, source: Path, name: str) -> None:
        """Copies a local file here; a reader finds it whole or not at all.

        Raises:
            FileNotFoundError: The local file is not there.
        """
        self._put_whole(name, lambda path: self._fs.put_file(str(source), path))

    def download(self, name: str, target: Path) -> None:
        """Copies a file to a local path.

        Raises:
            FileNotFoundError: It is not there.
        """
        self._fs.get_file(self._path(name), str(target))

    def remove(self, name: str) -> None:
        """Removes a file, if it is there, and what an interrupted `upload` of it left."""
        path = self._path(name)
        for each in (path,) if self._replaces_whole else (f"{path}{TEMPORARY_SUFFIX}", path):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(each)

    def names(self, directory: str = "") -> tuple[str, ...]:
        """Returns the names of what lies in a directory, sorted; none if it is not there."""
        self._fs.invalidate_cache()
        path = self._path(directory)
        try:
            found = self._fs.ls(path, detail=False)
        except FileNotFoundError:
            return ()
        # An object store lists an object with the directory's own name, which makes it look non-empty.
        names = {str(item).rstrip("/").rsplit("/", 1)[-1] for item in found if str(item).rstrip("/") != path}
        return tuple(sorted(names))

    def version(self, name: str) -> str:
        """Returns a text that changes when the file does."""
        return str(self._fs.ukey(self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _put_whole(self, name: str, put: Callable[[str], None]) -> None:
        path = self._path(name)
        if self._replaces_whole:
            put(path)
            return
        temporary = f"{path}{TEMPORARY_SUFFIX}"
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        put(temporary)
        try:
            self._fs.mv(temporary, path)
        except OSError:
            if not (self._fs.exists(temporary) and self._fs.exists(path)):
                raise
            self._fs.rm_file(path)  # the rename does not replace
            self._fs.mv(temporary, path)


def parse_location(location: str | os.PathLike[str]) -> Path | RemoteLocation:
    """Returns what a logdir's text means: a path, or a URL if it begins as `protocol://`; `file://` is a path.

    Raises:
        LogdirError: It is no text, a URL that went through `pathlib.Path`, a URL inside another, or names no place.
    """
    if isinstance(location, os.PathLike):
        path = Path(location)
        if _URL_THAT_WAS_A_PATH.match(str(path)):
            raise LogdirError(
                f"{path} is a URL that was made a pathlib.Path, which takes a slash out of it; give it as text, as "
                f"{str(path).replace(':/', '://', 1)!r}."
            )
        return path
    if not isinstance(location, str):
        raise LogdirError(f"the logdir is {location!r}, expected a path or a URL as text.")
    match = _URL.fullmatch(location)
    if match is None:
        return Path(location)
    protocol, rest = match[1].lower(), match[2].strip("/")
    if ":" in protocol:
        raise LogdirError(
            f"{location} is a URL inside another, expected a plain one as {protocol.rsplit(':', 1)[-1]}://…."
        )
    if protocol in _LOCAL_PROTOCOLS:
        return Path(match[2])
    if not rest:
        raise LogdirError(f"{location} names no bucket or directory, expected a URL as {protocol}://bucket/path.")
    # Leading slashes have a meaning: `hdfs:///path` has no host.
    return RemoteLocation(url=f"{protocol}://{match[2].rstrip('/')}", protocol=protocol)


@contextlib.contextmanager
def described(what: str) -> Iterator[None]:
    """Makes a LogdirError of whatever a remote file system raises in the block.

    Args:
        what: How the message begins: what could not be done, and where.

    Raises:
        LogdirError: The block raised; the message says how to go on.
    """
    try:
        yield
    except TfdbgArrowError:
        raise
    except Exception as error:
        raise LogdirError(f"{what} ({reason_of(error)}); {_advice(error)}.") from error


def reason_of(error: BaseException) -> str:
    """Returns in one line what an error says."""
    return f"{type(error).__name__}: {_first_line(error)}".rstrip(": ")


def is_final(error: BaseException) -> bool:
    """Whether trying again cannot help, because of credentials or a bucket that is not there."""
    if isinstance(error, (PermissionError, FileNotFoundError)):
        return True
    return "credential" in type(error).__name__.lower()


def _advice(error: BaseException) -> str:
    if isinstance(error, PermissionError) or "credential" in type(error).__name__.lower():
        return "check the credentials that the store's client finds, or give storage_options"
    if isinstance(error, FileNotFoundError):
        return "check that the bucket and the path exist"
    return "check the URL, the network and the store's settings"


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else ""


def _import_fsspec(location: RemoteLocation) -> Any:
    try:
        fsspec = importlib.import_module("fsspec")
        importlib.import_module("fsspec.asyn")
    except ImportError as error:
        packages = " ".join(["'tfdbg-arrow[remote]'", *filter(None, [_PACKAGES.get(location.protocol)])])
        raise MissingDependencyError(
            f"{location} needs fsspec, which is not installed; run: pip install {packages}"
        ) from error
    return fsspec


@functools.lru_cache(maxsize=1)
def _event_loop(pid: int) -> asyncio.AbstractEventLoop:
    """Returns the loop for asynchronous file systems: ours, not the one that the program's own share.

    Args:
        pid: The process: a fork's child has no thread for its parent's loop.
    """
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_ExitProofExecutor())
    threading.Thread(target=loop.run_forever, name="tfdbg_arrow-remote", daemon=True).start()
    return loop


class _ExitProofExecutor(ThreadPoolExecutor):
    """Runs a loop's name look-ups also while the interpreter exits, when a ThreadPoolExecutor refuses to.

    A recording that lasts to the end of its program is closed then.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(2):
            threading.Thread(target=self._run, name="tfdbg_arrow-names", daemon=True).start()

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Has a function called in one of the threads."""
        future: Future[_T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._work.put(call)
        return future

    def _run(self) -> None:
        while True:
            self._work.get()()
