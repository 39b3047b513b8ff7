"""Recording in processes that end, fork, spawn, and raise."""

from __future__ import annotations

from pathlib import Path

import pytest

from .subprocesses import run_python
from .tables import rows

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys
import tensorflow as tf
import tfdbg_arrow

logdir = sys.argv[1]

@tf.function
def f(x):
    for _ in tf.range(2):
        x = x * 2.0
    return x
"""


def clean_ends(logdir: Path) -> list[bool]:
    return [row["is_clean_end"] for row in rows(logdir, "run")]


def op_types(logdir: Path) -> list[str]:
    executions = sorted(rows(logdir, "execution"), key=lambda row: row["execution_index"])
    return [row["op_type"].rstrip("0123456789") for row in executions]


@pytest.mark.parametrize(
    ("ending", "returncode"),
    [("raise ValueError('of the program')", 1), ("sys.exit(7)", 7)],
)
def test_a_program_that_ends_without_disable_leaves_a_clean_run(ending: str, returncode: int, tmp_path: Path) -> None:
    text = PROGRAM + f"tfdbg_arrow.enable(logdir)\nprint(f(tf.constant(1.0)).numpy())\n{ending}\n"
    assert run_python(tmp_path / "program.py", text, tmp_path / "logdir", returncode=returncode) == "4.0\n"
    assert clean_ends(tmp_path / "logdir") == [True]
    assert op_types(tmp_path / "logdir") == ["__inference_f_"]
    assert list((tmp_path / "logdir" / "spool").iterdir()) == []


def test_running_threads_do_not_block_the_end(tmp_path: Path) -> None:
    text = PROGRAM + (
        "import threading\n"
        "tfdbg_arrow.enable(logdir)\n"
        "def work():\n"
        "    while True: f(tf.constant(1.0))\n"
        "f(tf.constant(1.0))\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "for _ in range(20): f(tf.constant(1.0))\n"
        "tfdbg_arrow.disable()\n"
        "os._exit(0)\n"
    )
    run_python(tmp_path / "program.py", text, tmp_path / "logdir")
    assert clean_ends(tmp_path / "logdir") == [True]


def test_a_killed_process_leaves_the_flushed_rows(tmp_path: Path) -> None:
    text = PROGRAM + ("tfdbg_arrow.enable(logdir)\nf(tf.constant(1.0))\ntfdbg_arrow.flush()\nos.kill(os.getpid(), 9)\n")
    run_python(tmp_path / "program.py", text, tmp_path / "logdir", returncode=-9)
    assert clean_ends(tmp_path / "logdir") == [False]
    assert op_types(tmp_path / "logdir") == ["__inference_f_"]
    assert sum(row["op_type"] == "Mul" for row in rows(tmp_path / "logdir", "tensor_health")) == 2


def test_a_forked_child_writes_nothing_and_the_parent_continues(tmp_path: Path) -> None:
    text = PROGRAM + (
        "import multiprocessing\n"
        "def square(n):\n"
        "    assert not tfdbg_arrow.is_recording()\n"
        "    tfdbg_arrow.mark(step=99); tfdbg_arrow.flush(); tfdbg_arrow.disable()\n"
        "    return n * n, sum(1 for _ in open(logdir + '/tfdbg_arrow.json'))\n"
        "tfdbg_arrow.enable(logdir)\n"
        "f(tf.constant(1.0))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    square(2)\n"
        "    os._exit(3)\n"  # without TensorFlow's threads, a normal exit hangs
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print([n for n, _ in pool.map(square, range(5))])\n"
        "f(tf.constant(2.0))\n"
    )
    output = run_python(tmp_path / "program.py", text, tmp_path / "logdir")
    assert output == "3\n[0, 1, 4, 9, 16]\n"
    assert clean_ends(tmp_path / "logdir") == [True]
    assert op_types(tmp_path / "logdir") == ["__inference_f_"] * 2
    assert rows(tmp_path / "logdir", "mark") == []
    assert len(list((tmp_path / "logdir" / "manifest").iterdir())) == 1
    ((stat, subject),) = [(row["stat"], row["subject"]) for row in rows(tmp_path / "logdir", "capture_stat")]
    assert (stat, subject) == ("unobservable", "forked processes")


def test_a_forked_child_can_start_a_recording(tmp_path: Path) -> None:
    """The child records to the same logdir, as a separate run."""
    text = (
        "import os, sys, tfdbg_arrow\n"
        "import tensorflow as tf\n"
        "tfdbg_arrow.enable(sys.argv[1])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    tfdbg_arrow.enable(sys.argv[1])\n"
        "    tfdbg_arrow.mark(step=5)\n"
        "    sys.exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert run_python(tmp_path / "program.py", text, tmp_path / "logdir") == "0\n"
    assert clean_ends(tmp_path / "logdir") == [True, True]
    assert len({row["run_id"] for row in rows(tmp_path / "logdir", "run")}) == 2
    assert [row["value"] for row in rows(tmp_path / "logdir", "mark")] == ["5"]


def test_a_spawned_child_can_record(tmp_path: Path) -> None:
    text = PROGRAM + (
        "import multiprocessing\n"
        "def work(n):\n"
        "    with tfdbg_arrow.capture(logdir):\n"
        "        return float(f(tf.constant(float(n))))\n"
        "if __name__ == '__main__':\n"
        "    tfdbg_arrow.enable(logdir)\n"
        "    f(tf.constant(1.0))\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [3]))\n"
    )
    assert run_python(tmp_path / "program.py", text, tmp_path / "logdir") == "[12.0]\n"
    assert clean_ends(tmp_path / "logdir") == [True, True]
    assert op_types(tmp_path / "logdir") == ["__inference_f_"] * 2


def test_replicas_in_threads_of_tensorflow(tmp_path: Path) -> None:
    """MirroredStrategy runs the step in one thread for each replica. The stacks have the user's frames."""
    text = """
        import sys
        import tensorflow as tf
        import tfdbg_arrow

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            weight = tf.Variable(2.0)

        def replica_step(x):
            if tf.reduce_sum(x) > 0.0:
                loss = tf.math.log(x * weight)
            else:
                loss = x
            return loss

        @tf.function
        def step(x):
            losses = strategy.run(replica_step, args=(x,))
            return strategy.reduce("SUM", losses, axis=None)

        with tfdbg_arrow.capture(sys.argv[1]):
            print(round(float(step(tf.constant(1.0))), 3))
    """
    assert run_python(tmp_path / "program.py", text, tmp_path / "logdir") == "1.386\n"
    logdir = tmp_path / "logdir"
    logs = [row for row in rows(logdir, "tensor_health") if row["op_type"] == "Log"]
    devices = {row["device_id"]: row["device_name"] for row in rows(logdir, "device")}
    assert sorted(devices[row["device_id"]].rpartition("/")[2] for row in logs) == ["device:CPU:0", "device:CPU:1"]
    frames = {row["stack_frame_id"]: row for row in rows(logdir, "stack_frame")}
    traces: dict[int, list[tuple[int, int]]] = {}
    for row in rows(logdir, "stack_trace"):
        traces.setdefault(row["stack_trace_id"], []).append((row["depth"], row["stack_frame_id"]))
    for op in rows(logdir, "graph_op"):
        if op["op_type"] == "Log":
            frame = next(
                frames[frame] for _, frame in sorted(traces[op["stack_trace_id"]]) if frames[frame]["owner"] == "user"
            )
            assert (frame["code"], frame["func"]) == ("loss = tf.math.log(x * weight)", "replica_step")
