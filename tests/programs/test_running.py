"""Test that a program that the server forks behaves as in a newly started process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .running import run_to_end, start_python

FACTS = """
import json, os, random, signal, sys, threading
frame = sys._getframe()
facts = {
    "names": sorted(globals()), "file": __file__, "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path,
    "is_main": vars(sys.modules["__main__"]) is globals(), "cwd": os.getcwd(), "environment": dict(os.environ),
    "num_threads": len(os.listdir("/proc/self/task")), "thread": threading.current_thread().name,
    "sigint": repr(signal.getsignal(signal.SIGINT)), "stdin": sys.stdin.read(), "flags": repr(sys.flags),
    "streams": [repr(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "imported": [name for name in ("numpy", "tensorflow", "keras", "tfdbg_arrow") if name in sys.modules],
}
import tensorflow as tf
facts["tensorflow"] = [tf.__spec__.origin, type(tf.__loader__).__name__, tf.__file__, tf.__path__]
facts["with it"] = [name for name in ("numpy", "tensorflow", "keras", "tfdbg_arrow") if name in sys.modules]
facts["sum"] = float(tf.reduce_sum(tf.ones([2, 2])))
print(json.dumps(facts))
"""


@pytest.mark.slow
def test_a_forked_program_sees_the_same_facts_as_a_started_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FACTS)
    environment = {**os.environ, "PYTHONPATH": "/no/such/path", "MINE": "1"}
    words = ("program.py", "a", "b c")
    forked = run_to_end(*words, cwd=tmp_path, environment=environment)
    started = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(forked.stdout) == json.loads(started.stdout)


@pytest.mark.parametrize(
    ("text", "returncode", "stderr"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('so')", 1, "so\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        (
            "def f():\n    raise ValueError('x')\nf()\n",
            1,
            (
                'Traceback (most recent call last):\n  File "{script}", line 3, in <module>\n    f()\n'
                "  File \"{script}\", line 2, in f\n    raise ValueError('x')\nValueError: x\n"
            ),
        ),
        ("import atexit; atexit.register(print, 'at exit', file=__import__('sys').stderr)", 0, "at exit\n"),
    ],
)
def test_a_forked_program_ends_like_a_started_process(tmp_path: Path, text: str, returncode: int, stderr: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(text)
    found = run_to_end(script)
    assert (found.returncode, found.stdout, found.stderr) == (returncode, "", stderr.format(script=script))


def test_a_module_runs_like_with_python_m(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("import sys; print(__name__, __package__, __spec__.name, sys.argv)")
    found = run_to_end("-m", "package.module", "x", cwd=tmp_path)
    assert found.stdout == f"__main__ package package.module {[str(tmp_path / 'package' / 'module.py'), 'x']}\n"


def test_a_program_can_be_talked_to_interrupted_and_killed(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("print(input(), flush=True)\nimport time\ntime.sleep(600)\n")
    with start_python(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("hello\n")
        program.stdin.flush()
        assert program.stdout.readline() == "hello\n"
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        assert program.wait() == -signal.SIGINT
    slow = start_python(script, stdin=0, stdout=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        slow.wait(0.01)
    assert slow.poll() == -signal.SIGKILL
