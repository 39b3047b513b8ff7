"""Stores for tests of logdirs at URLs: a file system with simulated failures, and a local S3 server."""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import fsspec
import pyarrow.parquet as pq

from tfdbg_arrow.storage.layout import MARKER_NAME
from tfdbg_arrow.storage.manifest import ManifestEntry, live_parts


class Store:
    """A store in memory. Requests are counted and can fail or hang.

    Attributes:
        files: The contents of its files, by path.
        rename_replaces: Whether a rename replaces an existing file.
        num_requests: The number of requests so far.
        fault: Called with the number and the name of each request before the request is executed; it can raise or wait.
            If it returns a function, that function is called after the request.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.num_requests = 0
        self.fault: Callable[[int, str], Callable[[], None] | None] = lambda number, name: None
        self.after: Callable[[], None] = lambda: None
        self.rename_replaces = True
        self._lock = threading.Lock()

    @contextmanager
    def request(self, name: str) -> Iterator[None]:
        with self._lock:
            number = self.num_requests
            self.num_requests += 1
        after = self.fault(number, name)
        try:
            yield
        finally:
            if after is not None:
                after()
        self.after()

    def content(self, path: str) -> bytes:
        return self.files[path]


_stores: dict[str, Store] = {}


class StoreFileSystem(fsspec.AbstractFileSystem):
    """A file system of the files of a Store, at `PROTOCOL://name/path`."""

    cachable = False

    def _at(self, path: str) -> tuple[Store, str]:
        name, _, rest = self._strip_protocol(path).strip("/").partition("/")
        return _stores[name], rest

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        store, name = self._at(path)
        with store.request("cat_file"):
            if name not in store.files:
                raise FileNotFoundError(path)
            return store.files[name]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        store, name = self._at(path)
        with store.request("pipe_file"):
            store.files[name] = bytes(value)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        store, name = self._at(rpath)
        with store.request("put_file"):
            store.files[name] = Path(lpath).read_bytes()

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        store, name = self._at(rpath)
        with store.request("get_file"):
            if name not in store.files:
                raise FileNotFoundError(rpath)
            Path(lpath).write_bytes(store.files[name])

    def rm_file(self, path: str) -> None:
        store, name = self._at(path)
        with store.request("rm_file"):
            if name not in store.files:
                raise FileNotFoundError(path)
            del store.files[name]

    def exists(self, path: str, **kwargs: Any) -> bool:
        store, name = self._at(path)
        with store.request("exists"):
            return name in store.files

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        (store, source), (_, target) = self._at(path1), self._at(path2)
        with store.request("mv"):
            if target in store.files and not store.rename_replaces:
                raise OSError(f"{path2} exists")
            if source not in store.files:
                raise FileNotFoundError(path1)
            store.files[target] = store.files.pop(source)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with self._at(path)[0].request("makedirs"):
            pass

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        store, name = self._at(path)
        with store.request("ls"):
            inside = {file.removeprefix(f"{name}/") for file in store.files if file.startswith(f"{name}/")}
            if not inside:
                raise FileNotFoundError(path)
            root = self._strip_protocol(path).rstrip("/")
            found = sorted({f"{root}/{file.partition('/')[0]}" for file in inside})
            return [{"name": each, "size": 0, "type": "file"} for each in found] if detail else found


class RenamingStore(StoreFileSystem):
    """A file system in which a file is visible while it is written and a rename replaces a file."""

    protocol = "renaming"


class ObjectStore(StoreFileSystem):
    """A file system in which objects appear complete. It uses the protocol of a package that is not installed."""

    protocol = "oss"


PROTOCOLS = ("renaming", "oss")


@contextmanager
def store(name: str) -> Iterator[Store]:
    """Yields a store that is available as `renaming://<name>/…` and `oss://<name>/…`."""
    fsspec.register_implementation("renaming", RenamingStore, clobber=True)
    fsspec.register_implementation("oss", ObjectStore, clobber=True)
    _stores[name] = made = Store()
    try:
        yield made
    finally:
        del _stores[name]


def live_in(files: dict[str, bytes], run_id: str, root: str = "log") -> tuple[ManifestEntry, ...]:
    """Returns the live parts of a run in a store, and checks each file against its manifest entry."""
    content = files.get(f"{root}/manifest/{run_id}.jsonl")
    if content is None:
        return ()
    assert f"{root}/{MARKER_NAME}" in files
    assert content.endswith(b"\n") or not content
    entries = live_parts(content.decode(), run_id=run_id, path="manifest")
    for entry in entries:
        file = files.get(f"{root}/{entry.path}")
        assert file is not None, f"{entry.path} is in the manifest but missing"
        assert (len(file), hashlib.sha256(file).hexdigest()) == (entry.bytes, entry.sha256), entry.path
    return entries


def events_in(files: dict[str, bytes], run_id: str, table: str = "mark", root: str = "log") -> list[int]:
    """Returns the sorted event indexes of the live parts of a table."""
    parts = [entry for entry in live_in(files, run_id, root) if entry.table == table]
    return sorted(event for entry in parts for event in _events(files[f"{root}/{entry.path}"]))


@functools.lru_cache(maxsize=1000)
def _events(part: bytes) -> list[int]:
    events: list[int] = pq.read_table(io.BytesIO(part))["event_index"].to_pylist()
    return events


class S3Server:
    """A local S3 server (moto) with a bucket named `bucket`. It can be killed and started again."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._make = ThreadedMotoServer
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()
        self.storage_options = {"endpoint_url": self.url, "key": "key", "secret": "secret"}
        urlopen(Request(f"{self.url}/moto-api/reset", method="POST"), timeout=30).close()
        self.client().create_bucket(Bucket="bucket")

    @property
    def url(self) -> str:
        # Use a host name, so that connections need a look-up.
        return f"http://localhost:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment variables that point s3fs to the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )

    def files(self) -> dict[str, bytes]:
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return {key: client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}

    def kill(self) -> None:
        self._server.stop()

    def start(self) -> None:
        """Starts the server again. It still has its objects."""
        self._server = self._make(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.kill()
