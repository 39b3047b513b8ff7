"""`tfdbg-arrow run`: the program runs as under `python`."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import tfdbg_arrow
from tfdbg_arrow.cli import app

from .running import OURS, python, rows, run, write

pytestmark = pytest.mark.slow

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
        theirs, ours = python(here, *args), run(here, *args, is_forked=False)
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
        theirs, ours = python(here, "program.py"), run(here, "program.py", is_forked=False)
        assert theirs.returncode != 0
        assert (ours.returncode, ours.stdout, OURS.sub("", ours.stderr)) == (
            theirs.returncode,
            theirs.stdout,
            theirs.stderr,
        )

    def test_a_program_from_a_named_pipe(self, here: Path) -> None:
        os.mkfifo(here / "pipe")
        text = "import sys, tensorflow as tf\nprint(float(tf.math.log(tf.constant(0.0))))\nsys.exit(7)\n"

        def fill() -> None:
            (here / "pipe").write_text(text, encoding="utf-8")

        filling = threading.Thread(target=fill, daemon=True)
        filling.start()
        ours = run(here, "pipe")
        assert (ours.returncode, ours.stdout) == (7, "-inf\n"), ours.stderr
        ((path, source, code),) = rows(
            here / "tfdbg_logdir",
            "SELECT f.file_path, f.source_text, s.code FROM source_file AS f JOIN user_frame AS s USING (file_path)",
        )
        assert (path, source, code) == (str(here / "pipe"), None, None)
        filling.join()

    def test_a_module_that_fails_shows_its_own_frames(self, here: Path) -> None:
        write(here, "package/__init__.py", "import no_such_module_at_all\n")
        write(here, "package/module.py", "")
        ours = run(here, "-m", "package.module", is_forked=False)
        assert ours.returncode == 1
        assert "ModuleNotFoundError: No module named 'no_such_module_at_all'" in ours.stderr
        assert str(Path(tfdbg_arrow.__file__).parent) not in ours.stderr

    def test_the_garbage_collector_is_on_but_for_the_objects_of_the_import(self, here: Path) -> None:
        text = """
            import gc, weakref
            class Cycle:
                def __init__(self):
                    self.itself = self
            import tensorflow as tf
            tf.math.log(tf.constant(1.0))
            facts = [gc.isenabled(), gc.get_freeze_count() > 100_000]
            later = weakref.ref(Cycle())
            gc.collect()
            print([*facts, later() is None])
        """
        write(here, "program.py", text)
        theirs, ours = python(here, "program.py"), run(here, "program.py", is_forked=False)
        assert theirs.stdout == "[True, False, True]\n", theirs.stderr
        assert ours.stdout == "[True, True, True]\n", ours.stderr

    def test_threads_are_waited_for(self, here: Path) -> None:
        write(
            here,
            "program.py",
            """
            import atexit, concurrent.futures, os, threading, time
            def late(text):
                time.sleep(0.3)
                os.write(1, text.encode() + b"\\n")
            threading.Thread(target=late, args=["thread"]).start()
            concurrent.futures.ThreadPoolExecutor(1).submit(late, "pool")
            atexit.register(print, "at exit")
            print("last line", flush=True)
            """,
        )
        theirs, ours = python(here, "program.py"), run(here, "program.py", is_forked=False)
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
        ours = run(here, "program.py", is_forked=False)
        assert ours.stdout.splitlines() == ["[2, 4]", "[2, 4]", "child", "parent"], ours.stderr
        assert ours.stderr == "tfdbg-arrow: nothing was recorded: the program did not import TensorFlow\n"

    def test_without_tensorflow_nothing_is_recorded_and_nothing_left_behind(self, here: Path) -> None:
        write(here, "program.py", "print('hello')\n")
        ours = run(here, "program.py", is_forked=False)
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
            (("--health-backend", "gpu", "program.py"), "'gpu'"),
            (("--op-regex", "(", "program.py"), "no regular expression"),
            (("--tensor-dtypes", "float3", "program.py"), "'float3'"),
            (("--tensor-dtypes", "string", "program.py"), "string"),
            (("--values", "(", "program.py"), "values is '('"),
            (("--steps", "1:x", "program.py"), "steps is '1:x'"),
            (("--max-bytes", "5", "program.py"), "max_bytes is 5"),
            (("--dump-on", "nan", "program.py"), "dump_on is 'nan'"),
            (("--dump-after", "5", "program.py"), "dump_after is 5 with circular_buffer_size -1"),
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


def test_help_says_where_our_options_end() -> None:
    result = CliRunner().invoke(app, ["run", "--help"])
    assert result.exit_code == 0
    assert "run [OPTIONS] {SCRIPT | -m MODULE} [ARGS]..." in result.stdout
    assert "belongs to the program" in result.stdout


KERAS_FIRST = """
import keras
import numpy as np

model = keras.Sequential([keras.layers.Dense(1, name="last")])
model.compile("sgd", "mse")
model.fit(np.ones([8, 2], "float32"), np.ones([8, 1], "float32"), batch_size=4, verbose=0)
"""


def test_a_program_that_imports_keras_first_has_layers_and_steps(tmp_path: Path) -> None:
    (tmp_path / "keras_first.py").write_text(KERAS_FIRST)
    ended = run(tmp_path, "-o", "logdir", "keras_first.py", is_forked=False)
    assert ended.returncode == 0, ended.stderr
    assert rows(tmp_path / "logdir", "SELECT max(step) FROM tensor_health") == [(1,)]
    layers = rows(tmp_path / "logdir", "SELECT DISTINCT layer FROM graph_op WHERE op_type = 'MatMul'")
    assert any("last" in (layer or "") for (layer,) in layers), layers


CONFIGURED = """
import sys
import tensorflow as tf

is_graph_mode = sys.argv[1] == "graph mode"
if is_graph_mode:
    tf.compat.v1.disable_v2_behavior()
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_visible_devices(cpus, "CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.set_soft_device_placement(True)
tf.config.optimizer.set_jit(False)
tf.config.experimental.enable_op_determinism()
tf.config.experimental.set_synchronous_execution(True)
tf.debugging.set_log_device_placement(False)
assert len(tf.config.list_logical_devices("CPU")) == 2

if is_graph_mode:
    x = tf.compat.v1.placeholder(tf.float32, [4])
    with tf.compat.v1.Session() as session:
        session.run(tf.math.log(x) + 1.0, {x: [0.0] * 4})
else:
    tf.function(lambda x: tf.math.log(x) + 1.0)(tf.zeros([4]))
"""


@pytest.mark.parametrize("mode", ["eager mode", "graph mode"])
@pytest.mark.parametrize("backend", ["native", "tensorflow"])
def test_devices_can_be_configured_while_recording(tmp_path: Path, backend: str, mode: str) -> None:
    (tmp_path / "configured.py").write_text(CONFIGURED)
    words = ("--health-backend", backend, "-o", "logdir", "configured.py", mode)
    ended = run(tmp_path, *words, is_forked=False)
    assert ended.returncode == 1, ended.stderr
    assert "RuntimeError" not in ended.stderr
    query = "SELECT op_type, num_neg_inf FROM tensor_health WHERE scope = 'graph' AND has_inf_or_nan"
    assert ("Log", 4) in rows(tmp_path / "logdir", query)
