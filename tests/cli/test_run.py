"""`tfdbg-arrow run`: the program runs as under `python`, and what it does is recorded."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tfdbg_arrow
from tfdbg_arrow.cli import app

OURS = re.compile(r"^tfdbg-arrow: .*\n", re.MULTILINE)

FACTS = """
import json, os, sys
print(json.dumps({
    "variables": [__name__, __file__, __package__, type(__loader__).__name__, __doc__, __annotations__, __cached__],
    "spec": __spec__ and [__spec__.name, __spec__.origin],
    "names": sorted(globals()),
    "is_main": vars(sys.modules["__main__"]) is globals(),
    "builtins": repr(__builtins__),
    "argv": sys.argv,
    "path": sys.path,
    "cwd": os.getcwd(),
    "errors": [sys.stdout.errors, sys.stderr.errors],
    "excepthook": repr(sys.excepthook),
}))
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory to run programs in."""
    return tmp_path


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


def run(here: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(here, "-m", "tfdbg_arrow", "run", *args, **environment)


def rows(logdir: Path, query: str) -> list[tuple[Any, ...]]:
    with tfdbg_arrow.open_logdir(logdir) as opened:
        return opened.rows(query)


class TestAsPythonDoes:
    @pytest.mark.parametrize(
        "args",
        [
            ("facts.py",),
            ("facts.py", "--logdir", "x", "-o", "y", "-m", "z", "--json", "--", "--help"),
            ("package/module.py", "-h"),
            ("-m", "package.module", "--mode", "SHAPE", "-m", "x"),
            ("-mpackage", "--", "-o"),
            ("package", "a b"),
            ("zipped.zip", ""),
        ],
    )
    def test_the_program_finds_what_it_finds_there(self, here: Path, args: tuple[str, ...]) -> None:
        for name in ("facts.py", "package/__main__.py", "package/module.py"):
            write(here, name, FACTS)
        shutil.make_archive(str(here / "zipped"), "zip", here / "package")
        theirs, ours = python(here, *args), run(here, *args)
        assert (theirs.returncode, ours.returncode) == (0, 0), theirs.stderr + ours.stderr
        assert json.loads(ours.stdout) == json.loads(theirs.stdout)

    @pytest.mark.parametrize(
        "text",
        [
            "def f():\n    raise ValueError('x')\nf()\n",
            "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from error\n",
            "x = (\n",
            "import sys\nsys.exit(7)\n",
            "import sys\nsys.exit('some text')\n",
            "import sys\nsys.excepthook = lambda kind, _, tb: print('hooked', kind.__name__, tb.tb_lineno)\n1 / 0\n",
            "import sys\ndef hook(*a):\n    raise OSError('broken')\nsys.excepthook = hook\n1 / 0\n",
            "raise BaseException('b')\n",
            "from tfdbg_arrow.errors import RecordingError\nraise RecordingError('the program raised it')\n",
        ],
    )
    def test_its_end_is_its_own(self, here: Path, text: str) -> None:
        write(here, "program.py", text)
        theirs, ours = python(here, "program.py"), run(here, "program.py")
        assert theirs.returncode != 0
        assert (ours.returncode, ours.stdout, OURS.sub("", ours.stderr)) == (
            theirs.returncode,
            theirs.stdout,
            theirs.stderr,
        )

    def test_a_module_that_fails_shows_its_own_frames(self, here: Path) -> None:
        write(here, "package/__init__.py", "import no_such_module_at_all\n")
        write(here, "package/module.py", "")
        ours = run(here, "-m", "package.module")
        assert ours.returncode == 1
        assert "ModuleNotFoundError: No module named 'no_such_module_at_all'" in ours.stderr
        assert str(Path(tfdbg_arrow.__file__).parent) not in ours.stderr

    def test_threads_are_waited_for(self, here: Path) -> None:
        write(
            here,
            "program.py",
            """
            import atexit, concurrent.futures, threading, time
            def late(text):
                time.sleep(0.3)
                print(text, flush=True)
            threading.Thread(target=late, args=["thread"]).start()
            concurrent.futures.ThreadPoolExecutor(1).submit(late, "pool")
            atexit.register(print, "at exit")
            print("last line", flush=True)
            """,
        )
        theirs, ours = python(here, "program.py"), run(here, "program.py")
        assert sorted(ours.stdout.splitlines()) == sorted(theirs.stdout.splitlines())
        assert sorted(ours.stdout.splitlines()) == ["at exit", "last line", "pool", "thread"]

    def test_pickles_and_processes_find_main(self, here: Path) -> None:
        write(
            here,
            "program.py",
            """
            import multiprocessing, os, pickle
            class Thing:
                pass
            def double(x):
                return 2 * x
            if __name__ == "__main__":
                assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
                for method in ("spawn", "fork"):
                    with multiprocessing.get_context(method).Pool(1) as pool:
                        print(pool.map(double, [1, 2]))
                child = os.fork()
                if child:
                    os.waitpid(child, 0)
                print("parent" if child else "child", flush=True)
            """,
        )
        ours = run(here, "program.py")
        assert ours.stdout.splitlines() == ["[2, 4]", "[2, 4]", "child", "parent"], ours.stderr
        assert ours.stderr == "tfdbg-arrow: nothing was recorded: the program did not import TensorFlow\n"

    def test_without_tensorflow_nothing_is_recorded_and_nothing_left_behind(self, here: Path) -> None:
        write(here, "program.py", "print('hello')\n")
        ours = run(here, "program.py")
        assert (ours.returncode, ours.stdout) == (0, "hello\n")
        assert ours.stderr == "tfdbg-arrow: nothing was recorded: the program did not import TensorFlow\n"
        assert [path.name for path in here.iterdir()] == ["program.py"]


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("args", "why"),
        [
            ((), "no program"),
            (("no_such_script.py",), "the script no_such_script.py cannot be read"),
            (("-m", "no_such_module.x"), "no module 'no_such_module.x'"),
            (("-m", "json"), "the module json cannot be run"),
            (("--mode", "FULL_HELTH", "program.py"), "'FULL_HELTH'"),
            (("--health-backend", "gpu", "program.py"), "'gpu'"),
            (("--op-regex", "(", "program.py"), "no regular expression"),
            (("--tensor-dtypes", "float3", "program.py"), "'float3'"),
            (("--tensor-dtypes", "string", "program.py"), "string"),
            (("--values", "(", "program.py"), "values is '('"),
            (("--steps", "1:x", "program.py"), "steps is '1:x'"),
            (("--max-bytes", "5", "program.py"), "max_bytes is 5"),
            (("--dump-on", "nan", "program.py"), "dump_on is 'nan'"),
            (("--dump-after", "5", "program.py"), "without dump_on"),
        ],
    )
    def test_is_one_sentence_before_the_program_starts(self, here: Path, args: tuple[str, ...], why: str) -> None:
        write(here, "program.py", "print('started')\n")
        ours = run(here, *args)
        assert (ours.returncode, ours.stdout) == (2, "")
        assert why in ours.stderr
        assert ours.stderr.startswith("tfdbg-arrow: ")
        assert ours.stderr.count("\n") == 1
        assert not (here / "tfdbg_logdir").exists()

    def test_an_option_that_is_none_of_ours(self, here: Path) -> None:
        write(here, "program.py", "print('started')\n")
        ours = run(here, "--mod", "SHAPE", "program.py")
        assert (ours.returncode, ours.stdout) == (2, "")
        assert "--mod" in ours.stderr

    def test_what_shows_only_when_tensorflow_is_imported(self, here: Path) -> None:
        write(
            here,
            "program.py",
            """
            try:
                import tensorflow
            except Exception:
                pass
            print("still running")
            """,
        )
        (here / "logdir").mkdir()
        (here / "logdir" / "spool").write_text("in the way")
        ours = run(here, "-o", "logdir", "program.py")
        assert (ours.returncode, ours.stdout) == (2, "")
        assert ours.stderr.splitlines()[-1].startswith(f"tfdbg-arrow: the logdir {here / 'logdir'} cannot be written: ")
        assert "Traceback" not in ours.stderr


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


@pytest.mark.slow
class TestRecording:
    def test_a_bad_program_is_exit_code_1_and_named(self, here: Path) -> None:
        program = write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "program.py")
        assert (ours.returncode, ours.stdout) == (1, "loss nan 2\n"), ours.stderr
        first, second = ours.stderr.splitlines()[-2:]
        assert re.fullmatch(
            r"tfdbg-arrow: recorded \d+ tensors in tfdbg_logdir, \d+ of them bad; the first: -Inf in Log:0 \(Log\) in "
            rf"loss, {re.escape(str(program))}:{LOG_LINE}: return -tf.reduce_mean\(labels \* tf.math.log\(probs\)\)",
            first,
        )
        ((run_id,),) = rows(here / "tfdbg_logdir", "SELECT run_id FROM run")
        assert second == (
            f"tfdbg-arrow: for its inputs and stack: tfdbg-arrow first-nonfinite tfdbg_logdir --run-id {run_id}"
        )

        found = tfdbg_arrow.first_nonfinite(here / "tfdbg_logdir")
        assert found is not None
        assert (found.op_type, found.num_neg_inf, found.num_nan, found.is_origin) == ("Log", 1, 0, True)
        (probs,) = found.inputs
        assert probs.producer is not None
        assert probs.health is not None
        assert (probs.producer.op_name, probs.producer.output_slot, probs.producer.graph_name) == (
            "Softmax",
            0,
            "model",
        )
        assert (probs.health.num_zero, probs.health.size) == (1, 4)
        user = [(frame.file_path, frame.func) for frame in found.stack if frame.is_user]
        assert user == [(str(program), "loss"), (str(program), "main"), (str(program), "<module>")]
        assert found.stack[-1].func == "<module>"

    def test_a_program_is_stopped_and_told_why(self, here: Path) -> None:
        program = write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "--on-nonfinite", "raise", "program.py")
        assert (ours.returncode, ours.stdout) == (1, ""), ours.stderr
        assert "tfdbg_arrow.errors.NonFiniteError: -Inf in Log:0 (Log) in loss, " in ours.stderr
        assert "tfdbg-arrow: the program was stopped by\n-Inf in Log:0 (Log)\n" in ours.stderr
        assert f"source {program}:{LOG_LINE}\n" in ours.stderr

        ours = run(here, "--on-nonfinite=raise", "--json", "program.py")
        stopped_by = json.loads(ours.stderr.splitlines()[-1])["stopped_by"]
        assert (stopped_by["op_type"], stopped_by["source"]["lineno"]) == ("Log", LOG_LINE)

    def test_what_stops_where_the_program_ends_its_dump_is_told(self, here: Path) -> None:
        text = (
            "import tensorflow as tf\n"
            "tf.debugging.experimental.enable_dump_debug_info('dump', 'FULL_HEALTH', -1)\n"
            "bad = tf.math.log(tf.constant(0.0))\n"
            "tf.debugging.experimental.disable_dump_debug_info()\n"
            "print(float(bad * 2.0))\n"
        )
        write(here, "program.py", text)
        ours = run(here, "--on-nonfinite=raise", "--json", "program.py")
        assert (ours.returncode, ours.stdout) == (1, "-inf\n"), ours.stderr
        found = json.loads(ours.stderr.splitlines()[-1])
        assert (found["program_exit_code"], found["stopped_by"]["op_type"]) == (0, "Log")
        assert found["stopped_by"]["source"]["lineno"] == 3

    def test_json_is_the_last_line_of_stderr(self, here: Path) -> None:
        write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "--json", "-o", "a b", "program.py", "7")
        assert (ours.returncode, ours.stdout) == (7, "loss nan 2\n")
        found = json.loads(ours.stderr.splitlines()[-1])
        ((run_id, tensors, bad),) = rows(
            here / "a b", "SELECT run_id, count(*), count(*) FILTER (has_inf_or_nan) FROM tensor_health GROUP BY run_id"
        )
        nonfinite = found.pop("nonfinite")
        assert found == {
            "logdir": str(here / "a b"),
            "run_ids": [run_id],
            "program_exit_code": 7,
            "num_tensors": tensors,
            "num_nonfinite": bad,
            "unobserved": None,
            "stopped_by": None,
        }
        assert (nonfinite["op_name"], nonfinite["source"]["lineno"]) == ("Log", LOG_LINE)

    def test_only_its_own_run_decides(self, here: Path) -> None:
        write(here, "bad.py", BAD_PROGRAM)
        write(here, "healthy.py", HEALTHY_PROGRAM)
        options = ("--mode=FULL_NUMERICS", "--circular-buffer-size", "50", "--op-regex", "MatMul|Add")
        assert run(here, "bad.py").returncode == 1
        ours = run(here, *options, "--tensor-dtypes", "float32, float64", "--health-backend", "native", "healthy.py")
        assert (ours.returncode, ours.stdout) == (0, "40.0\n"), ours.stderr
        assert re.fullmatch(
            r"tfdbg-arrow: recorded \d tensors in tfdbg_logdir, none of them bad; "
            "for more: tfdbg-arrow info tfdbg_logdir",
            ours.stderr.splitlines()[-1],
        )
        assert rows(
            here / "tfdbg_logdir",
            "SELECT tensor_debug_mode, circular_buffer_size, op_regex, tensor_dtypes, health_backend, is_clean_end "
            "FROM run ORDER BY wall_time_ns",
        ) == [
            ("FULL_HEALTH", -1, None, None, "native", True),
            ("FULL_NUMERICS", 50, "MatMul|Add", '["float32","float64"]', "native", True),
        ]

    def test_a_schedule_and_chosen_values(self, here: Path) -> None:
        write(
            here,
            "program.py",
            """
            import tensorflow as tf, tfdbg_arrow
            for step in range(4):
                tfdbg_arrow.mark(step=step)
                tf.math.log(float(step - 1))
                tf.exp(1.0)
            """,
        )
        ours = run(here, "--steps=2:", "--values", "Log", "--max-bytes", "1048576", "program.py")
        assert ours.returncode == 0, ours.stderr
        first, *left_out = ours.stderr.splitlines()[-3:]
        assert "none of them bad" in first
        assert left_out == [
            f"tfdbg-arrow: not all was recorded: {what} recorded, as it was asked."
            for what in (
                "The steps outside of the schedule 2: were not",
                "2 of 4 steps were outside of the schedule 2: and not",
            )
        ]
        logdir = here / "tfdbg_logdir"
        assert rows(
            logdir,
            "SELECT op_type, step, value IS NOT NULL FROM tensor_health "
            "LEFT JOIN tensor_value USING (run_id, event_index) WHERE scope = 'execution' ORDER BY event_index",
        ) == [("Log", 2, True), ("Exp", 2, False), ("Log", 3, True), ("Exp", 3, False)]
        ((settings,),) = rows(logdir, "SELECT settings FROM run")
        names = ("values", "steps", "max_bytes", "dump_on", "dump_after")
        assert [json.loads(settings)[name] for name in names] == ["Log", "2:", 1048576, None, None]

    def test_a_black_box(self, here: Path) -> None:
        write(here, "program.py", "import tensorflow as tf\nfor x in (1.0, 2.0, -1.0, 3.0, 4.0):\n    tf.math.log(x)\n")
        box = ("--circular-buffer-size", "2", "--dump-on", "nonfinite")
        ours = run(here, *box, "--dump-after", "1", "program.py")
        assert ours.returncode == 1, ours.stderr
        logged = "SELECT execution_index FROM execution WHERE op_type = 'Log' ORDER BY 1"
        assert rows(here / "tfdbg_logdir", logged) == [(1,), (2,), (3,)]

    def test_a_mode_that_looks_at_nothing_says_so(self, here: Path) -> None:
        write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "--mode", "SHAPE", "program.py")
        assert ours.returncode == 0
        assert "not looked at in mode SHAPE" in ours.stderr.splitlines()[-1]

    def test_a_program_without_tensors_is_not_called_healthy(self, here: Path) -> None:
        write(here, "program.py", "import tensorflow\n")
        ours = run(here, "program.py")
        assert ours.returncode == 0
        assert "no tensor was recorded in tfdbg_logdir" in ours.stderr.splitlines()[-1]

    def test_turned_off_by_the_environment(self, here: Path) -> None:
        write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "program.py", TFDBG_ARROW="0")
        assert (ours.returncode, ours.stdout) == (0, "loss nan 2\n")
        assert ours.stderr.splitlines()[-1] == "tfdbg-arrow: nothing was recorded: TFDBG_ARROW=0 is set"
        assert not (here / "tfdbg_logdir").exists()

    def test_ctrl_c_ends_the_program_and_keeps_what_was_recorded(self, here: Path) -> None:
        write(
            here,
            "program.py",
            BAD_PROGRAM + "    import time\n    print('ready', flush=True)\n    time.sleep(600)\n",
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "tfdbg_arrow", "run", "program.py"],
            cwd=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["loss nan 2\n", "ready\n"]
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=300)
        assert process.returncode == 130
        assert "\nKeyboardInterrupt\n" in stderr
        assert "-Inf in Log:0 (Log) in loss" in stderr.splitlines()[-2]
        assert rows(here / "tfdbg_logdir", "SELECT is_clean_end FROM run") == [(True,)]


@pytest.mark.slow
class TestDumpDebugInfo:
    def test_its_settings_become_ours_and_its_own_dump_never_starts(self, here: Path) -> None:
        write(
            here,
            "program.py",
            """
            import tensorflow.compat.v2 as tf
            import tfdbg_arrow
            from tensorflow.python.debug.lib import dumping_callback

            writer = tf.debugging.experimental.enable_dump_debug_info(
                "dump", tensor_debug_mode="CONCISE_HEALTH", circular_buffer_size=100, op_regex="Log",
                tensor_dtypes=[tf.float32, "float64"])
            same = "CONCISE_HEALTH", 100, "Log", ("float64", tf.float32)
            tf.compat.v1.debugging.experimental.enable_dump_debug_info("dump", *same)
            dumping_callback.enable_dump_debug_info("elsewhere", *same)
            tfdbg_arrow.enable_dump_debug_info("elsewhere", *same)
            for settings in (("FULL_HEALTH", *same[1:]), ("CONCISE_HEALTH", -1, *same[2:]), ("NO_SUCH", 100),
                             (*same[:2], "Exp", same[3]), same[:3]):
                try:
                    tf.debugging.experimental.enable_dump_debug_info("dump", *settings)
                except ValueError as error:
                    print("refused", error)
            print(tf.math.log(tf.constant([0.0, 1.0])).numpy(), tf.exp(1.0).numpy() > 2, writer.dump_root)
            writer.FlushNonExecutionFiles()
            writer.FlushExecutionFiles()
            """,
        )
        ours = run(here, "-o", "logdir", "program.py")
        assert ours.returncode == 1, ours.stderr
        *refused, last = ours.stdout.splitlines()
        assert [re.sub("is '?(.*?)'?[,;].*", r"\1", text) for text in refused] == [
            "refused tensor_debug_mode FULL_HEALTH",
            "refused circular_buffer_size -1",
            "refused tensor_debug_mode NO_SUCH",
            "refused op_regex Exp",
            "refused tensor_dtypes None",
        ]
        assert last == "[-inf   0.] True dump"
        assert not (here / "dump").exists()
        assert not (here / "elsewhere").exists()
        assert rows(
            here / "logdir", "SELECT tensor_debug_mode, circular_buffer_size, op_regex, tensor_dtypes FROM run"
        ) == [("CONCISE_HEALTH", 100, "Log", '["float32","float64"]')]
        assert rows(here / "logdir", "SELECT op_type, num_neg_inf FROM tensor_health WHERE op_type IS NOT NULL") == [
            ("Log", 1)
        ]

    def test_disable_ends_it_and_it_can_begin_again(self, here: Path) -> None:
        write(
            here,
            "program.py",
            """
            import tensorflow as tf
            dump = tf.debugging.experimental
            f = tf.function(lambda x: tf.math.log(x))
            dump.disable_dump_debug_info()          # nothing is enabled: nothing to end
            f(tf.constant(1.0))
            dump.enable_dump_debug_info("dump", tensor_dtypes=lambda dtype: dtype.is_floating)
            f(tf.constant(2.0))
            dump.disable_dump_debug_info()
            f(tf.constant(0.0))
            dump.enable_dump_debug_info("dump", "FULL_HEALTH", -1)
            f(tf.constant(3.0))
            dump.disable_dump_debug_info()
            dump.disable_dump_debug_info()
            f(tf.constant(0.0))
            """,
        )
        ours = run(here, "-o", "logdir", "program.py")
        assert ours.returncode == 0, ours.stderr
        assert "none of them bad" not in ours.stderr
        assert "were not looked at in mode NO_TENSOR" in ours.stderr
        assert rows(
            here / "logdir",
            "SELECT tensor_debug_mode, circular_buffer_size, is_clean_end, count(*) FILTER (op_type = 'Log') "
            "FROM run LEFT JOIN tensor_health AS t USING (run_id) GROUP BY run_id, 1, 2, 3 ORDER BY run_id",
        ) == [("FULL_HEALTH", -1, True, 1), ("NO_TENSOR", 1000, True, 0), ("FULL_HEALTH", -1, True, 1)]
        assert not (here / "dump").exists()


def test_help_says_where_our_options_end() -> None:
    result = CliRunner().invoke(app, ["run", "--help"])
    assert result.exit_code == 0
    assert "run [OPTIONS] {SCRIPT | -m MODULE} [ARGS]..." in result.stdout
    assert "belongs to the program" in result.stdout
