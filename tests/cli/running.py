"""Runs programs under `tfdbg-arrow run`, and under `python` for comparison."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import tfdbg_arrow

from ..programs.running import run_to_end

OURS = re.compile(r"^tfdbg-arrow: .*\n", re.MULTILINE)


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def python(here: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )


def run(here: Path, *args: str, is_forked: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `tfdbg-arrow run`. With `is_forked`, the process may be forked from one that has imported TensorFlow."""
    words = ("-m", "tfdbg_arrow", "run", *args)
    if not is_forked:
        return python(here, *words, **environment)
    return run_to_end(*words, cwd=here, environment={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment})


def rows(logdir: Path, query: str) -> list[tuple[Any, ...]]:
    with tfdbg_arrow.open_logdir(logdir) as opened:
        return opened.rows(query)


@contextlib.contextmanager
def viewing(*args: str) -> Iterator[tuple[dict[str, Any], urllib.request.OpenerDirector]]:
    """Runs `tfdbg-arrow view`, and yields what it printed and a client that keeps cookies. Ends it with Ctrl-C."""
    command = [sys.executable, "-m", "tfdbg_arrow", "view", *args, "--no-open", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while lines[-1] and lines[-1] != "}\n":
                lines.append(process.stdout.readline())
            yield json.loads("".join(lines)), client()
        finally:
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (0, "", "")


def client() -> urllib.request.OpenerDirector:
    """Returns a client that keeps cookies and uses no proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar()))


BAD_PROGRAM = """
import importlib.util, os, sys
os.environ["TF_NUM_INTEROP_THREADS"] = "3"
assert importlib.util.find_spec("tensorflow") is not None
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@tf.function
def model(x):
    return tf.nn.softmax(x)


@tf.function
def loss(probs, labels):
    return -tf.reduce_mean(labels * tf.math.log(probs))


def main():
    probs = model(tf.constant([[-1000.0, 0.0], [1.0, 2.0]]))
    print("loss", loss(probs, tf.constant([[0.0, 1.0], [1.0, 0.0]])).numpy(), len(tf.config.list_logical_devices()))


if __name__ == "__main__":
    main()
    if sys.argv[1:]:
        sys.exit(int(sys.argv[1]))
"""


LOG_LINE = BAD_PROGRAM.splitlines().index("    return -tf.reduce_mean(labels * tf.math.log(probs))") + 1


HEALTHY_PROGRAM = """
import tensorflow as tf
x = tf.ones([2, 2])
print((x @ x + tf.cast(x, tf.float64).dtype.size).numpy().sum())
"""
