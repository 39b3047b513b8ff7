"""Locations of logdirs: a local directory, or a URL that fsspec opens.

fsspec handles credentials. The credentials come from fsspec's options, from its configuration files, or from the
environment variables of the store's client.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any, TypeVar

from tfdbg_arrow.errors import LogdirError, MissingDependencyError, TfdbgArrowError, install_command
from tfdbg_arrow.storage.layout import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    import asyncio

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
"""The package to install for each protocol."""
_REPLACES_WHOLE = frozenset({*_PACKAGES, "memory"} - {"sftp", "ssh"})
"""The protocols of stores that replace an object atomically when it is written."""
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class RemoteLocation:
    """A logdir at a URL.

    Attributes:
        url: The URL, without a trailing slash.
        protocol: The part before `://`, in lower case.
    """

    url: str
    protocol: str

    def __str__(self) -> str:
        """Returns the URL with the password masked."""
        return _PASSWORD.sub(r"\1:***@", self.url)

    def __repr__(self) -> str:
        return f"RemoteLocation({str(self)!r})"

    def open(self, storage_options: Mapping[str, Any] | None = None) -> RemoteDirectory:
        """Returns the directory at the URL. This does not contact the store, and the directory may not exist yet.

        Args:
            storage_options: fsspec's arguments for this protocol. None means the arguments in fsspec's configuration.

        Raises:
            MissingDependencyError: fsspec, or the package for the protocol, is not installed.
            LogdirError: The protocol is unknown, or its file system rejects the options.
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
                f"{self} has the protocol {self.protocol!r}, which fsspec does not know; expected a URL such as s3://, "
                "gs://, abfs:// or hdfs://, or the path of a directory."
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
    """A directory of a remote file system. File names are relative to the directory, with `/` as separator.

    The methods raise the errors of the file system. `described` converts such errors into a LogdirError.

    Attributes:
        location: The URL of the directory.
        is_concurrent: Whether several threads may use the directory at the same time.
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
            FileNotFoundError: The file does not exist.
        """
        content: bytes = self._fs.cat_file(self._path(name))
        return content

    def write_bytes(self, name: str, content: bytes) -> None:
        """Writes a file atomically: a reader finds the previous file or the new file, but never an incomplete file."""
        self._put_whole(name, lambda path: self._fs.pipe_file(path, content))

    def upload(self, source: Path, name: str) -> None:
        """Copies a local file into this directory. A reader finds the whole file or no file.

        Raises:
            FileNotFoundError: The local file does not exist.
        """
        self._put_whole(name, lambda path: self._fs.put_file(str(source), path))

    def download(self, name: str, target: Path) -> None:
        """Copies a file to a local path.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        self._fs.get_file(self._path(name), str(target))

    def remove(self, name: str) -> None:
        """Removes a file, if it exists, and the temporary file of an interrupted upload of the same file."""
        path = self._path(name)
        for file_path in (path,) if self._replaces_whole else (f"{path}{TEMPORARY_SUFFIX}", path):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(file_path)

    def names(self, directory: str = "") -> tuple[str, ...]:
        """Returns the sorted names of a directory's entries. Returns an empty tuple if the directory does not exist."""
        self._fs.invalidate_cache()
        path = self._path(directory)
        try:
            entries = self._fs.ls(path, detail=False)
        except FileNotFoundError:
            return ()
        # An object store may list an object with the name of the directory. Leave it out, because otherwise an empty
        # directory would seem to have a file.
        names = {str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries if str(entry).rstrip("/") != path}
        return tuple(sorted(names))

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
            self._fs.rm_file(path)  # this file system's rename does not replace an existing file
            self._fs.mv(temporary, path)


def parse_location(location: str | os.PathLike[str]) -> Path | RemoteLocation:
    """Parses the location of a logdir. The result is a URL if the location begins with `protocol://`; otherwise a path.

    A `file://` URL becomes a path.

    Raises:
        LogdirError: The location is not a string or a path, is a URL that was converted to a `pathlib.Path`, is a URL
            inside another URL, or is a URL without a bucket or directory.
    """
    if isinstance(location, os.PathLike):
        path = Path(location)
        if _URL_THAT_WAS_A_PATH.match(str(path)):
            raise LogdirError(
                f"{path} is a URL that was converted to a pathlib.Path, which removed a slash; pass it as a string: "
                f"{str(path).replace(':/', '://', 1)!r}."
            )
        return path
    if not isinstance(location, str):
        raise LogdirError(f"the logdir is {location!r}, expected a path or a URL as a string.")
    match = _URL.fullmatch(location)
    if match is None:
        return Path(location)
    protocol, rest = match[1].lower(), match[2].strip("/")
    if ":" in protocol:
        raise LogdirError(
            f"{location} is a URL inside another URL, expected a plain one such as {protocol.rsplit(':', 1)[-1]}://…."
        )
    if protocol in _LOCAL_PROTOCOLS:
        return Path(match[2])
    if not rest:
        raise LogdirError(f"{location} names no bucket or directory, expected a URL such as {protocol}://bucket/path.")
    # Keep leading slashes, because they have a meaning: `hdfs:///path` has no host.
    return RemoteLocation(url=f"{protocol}://{match[2].rstrip('/')}", protocol=protocol)


@contextlib.contextmanager
def described(what: str) -> Iterator[None]:
    """Converts all errors that a remote file system raises in the block into a LogdirError.

    Args:
        what: The beginning of the message. The beginning names the action that failed and the location.

    Raises:
        LogdirError: The block raised an error. The message says what to check.
    """
    try:
        yield
    except TfdbgArrowError:
        raise
    except Exception as error:
        raise LogdirError(f"{what} ({reason_of(error)}); {_advice(error)}.") from error


def reason_of(error: BaseException) -> str:
    """Returns the type and the first line of the message of an error."""
    return f"{type(error).__name__}: {_first_line(error)}".rstrip(": ")


def is_final(error: BaseException) -> bool:
    """Returns whether a retry cannot help: the credentials are wrong, or a file or bucket does not exist."""
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
        command = install_command("remote", *filter(None, [_PACKAGES.get(location.protocol)]))
        raise MissingDependencyError(f"{location} needs fsspec, which is not installed; run: {command}") from error
    return fsspec


@functools.lru_cache(maxsize=1)
def _event_loop(pid: int) -> asyncio.AbstractEventLoop:
    """Returns this package's event loop for asynchronous file systems. The program's event loop is a different one.

    Args:
        pid: ID of the process. A forked child needs its own loop, because it does not have the thread that runs the
            loop of its parent.
    """
    import asyncio  # imported here because local logdirs need no event loop

    loop = asyncio.new_event_loop()
    loop.set_default_executor(_ExitProofExecutor())
    threading.Thread(target=loop.run_forever, name="tfdbg_arrow-remote", daemon=True).start()
    return loop


class _ExitProofExecutor(ThreadPoolExecutor):
    """An executor that also works while the interpreter exits. An event loop uses it to resolve host names.

    A ThreadPoolExecutor rejects work while the interpreter exits. However, a recording that lasts until the end of its
    program is closed at that time.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(2):
            threading.Thread(target=self._run, name="tfdbg_arrow-names", daemon=True).start()

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Calls a function in one of the executor's threads."""
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
