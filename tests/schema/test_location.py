from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.errors import LogdirError, MissingDependencyError
from tfdbg_arrow.storage.location import RemoteLocation, described, parse_location


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("logs/run", "logs/run"),
        ("/logs", "/logs"),
        ("file:///logs/x", "/logs/x"),
        ("a:b", "a:b"),
        (Path("logs"), "logs"),
    ],
)
def test_a_path(text: Any, path: str) -> None:
    assert parse_location(text) == Path(path)


@pytest.mark.parametrize(
    ("text", "url", "protocol"),
    [
        ("s3://bucket/logs/run/", "s3://bucket/logs/run", "s3"),
        ("S3://Bucket/Logs", "s3://Bucket/Logs", "s3"),
        ("hdfs:///user/logs", "hdfs:///user/logs", "hdfs"),
        ("memory://logs", "memory://logs", "memory"),
    ],
)
def test_a_url(text: str, url: str, protocol: str) -> None:
    assert parse_location(text) == RemoteLocation(url=url, protocol=protocol)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3://", "names no bucket or directory"),
        ("s3:///", "names no bucket or directory"),
        ("simplecache::s3://bucket/x", "is a URL inside another URL, expected a plain one such as s3://"),
        (Path("s3://bucket/x"), "pass it as a string: 's3://bucket/x'"),
        (3, "expected a path or a URL as a string"),
    ],
)
def test_errors_for_invalid_locations(text: Any, said: str) -> None:
    with pytest.raises(LogdirError) as caught:
        parse_location(text)
    assert said in str(caught.value)


def test_a_password_is_not_shown() -> None:
    location = parse_location("sftp://user:secret@host/logs")
    assert (str(location), repr(location)) == (
        "sftp://user:***@host/logs",
        "RemoteLocation('sftp://user:***@host/logs')",
    )


def open_url(url: str) -> None:
    location = parse_location(url)
    assert isinstance(location, RemoteLocation)
    location.open()


def test_the_error_for_an_unknown_protocol() -> None:
    with pytest.raises(LogdirError, match="has the protocol 'nonsense', which fsspec does not know"):
        open_url("nonsense://x/y")


def test_the_error_for_a_missing_package() -> None:
    with pytest.raises(MissingDependencyError, match=r"abfs://c/x needs a package .*; run: pip install adlfs"):
        open_url("abfs://c/x")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError("Forbidden"), "check the credentials that the store's client finds, or give storage_options"),
        (FileNotFoundError("The specified bucket does not exist"), "check that the bucket and the path exist"),
        (TimeoutError("slow\nvery"), "check the URL, the network and the store's settings"),
    ],
)
def test_an_error_of_the_store_becomes_one_sentence(error: Exception, advice: str) -> None:
    with pytest.raises(LogdirError) as caught, described("s3://b/x cannot be read"):
        raise error
    reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    assert str(caught.value) == f"s3://b/x cannot be read ({reason}); {advice}."
