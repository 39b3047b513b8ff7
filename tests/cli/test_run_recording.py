"""Test that `tfdbg-arrow run` records a program and prints what was found."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tfdbg_arrow

from .running import BAD_PROGRAM, HEALTHY_PROGRAM, LOG_LINE, rows, run, write

pytestmark = pytest.mark.slow

HEADLINE = (
    f"`tf.math.log(probs)` at program.py:{LOG_LINE} made -Inf in call 1 of loss: from row 0 of the argument `x` of "
    "`model`."
)


class TestRecording:
    def test_a_bad_value_is_named_with_exit_code_1(self, here: Path) -> None:
        program = write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "program.py", is_forked=False)
        assert (ours.returncode, ours.stdout) == (1, "loss nan 2\n"), ours.stderr
        *verdict, number, second = ours.stderr.splitlines()[-7:]
        assert verdict == [
            f"tfdbg-arrow: {HEADLINE}",
            "tfdbg-arrow: Log of 0: 1 of 4 elements is 0, and the logarithm of 0 is -Inf.",
            "tfdbg-arrow: To fix it: Use tf.nn.log_softmax in place of the softmax and the logarithm.",
            "tfdbg-arrow: Effect: reached a result of the program.",
            "tfdbg-arrow: The argument `x` of `model` itself has no NaN and no infinity.",
        ]
        assert re.fullmatch(r"tfdbg-arrow: recorded \d+ tensors in tfdbg_logdir, \d+ of them bad", number)
        shown = "tfdbg-arrow: for its op, inputs and stack: tfdbg-arrow first-nonfinite tfdbg_logdir"
        assert second == shown

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

        again = run(here, "program.py", is_forked=False).stderr.splitlines()
        newest = rows(here / "tfdbg_logdir", "SELECT run_id FROM run ORDER BY wall_time_ns DESC LIMIT 1")[0][0]
        assert again[-1] == f"{shown} --run {newest}", "the logdir holds two runs now"

    def test_on_nonfinite_raise_stops_the_program_with_the_reason(self, here: Path) -> None:
        program = write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "--on-nonfinite", "raise", "program.py")
        assert (ours.returncode, ours.stdout) == (1, ""), ours.stderr
        assert f"tfdbg_arrow.errors.NonFiniteError: {HEADLINE}\nLog of 0: " in ours.stderr
        assert f"tfdbg-arrow: the program was stopped by\n{HEADLINE}\n" in ours.stderr
        assert f"source {program}:{LOG_LINE}\n" in ours.stderr

        ours = run(here, "--on-nonfinite=raise", "--json", "program.py")
        stopped_by = json.loads(ours.stderr.splitlines()[-1])["stopped_by"]
        assert (stopped_by["op_type"], stopped_by["source"]["lineno"]) == ("Log", LOG_LINE)

    def test_a_bad_value_found_when_the_program_disables_its_dump_is_reported(self, here: Path) -> None:
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
        nonfinite, reasons = found.pop("nonfinite"), found.pop("reasons")
        assert reasons["explanation"]["sentence"].startswith("Log of 0: ")
        assert found == {
            "logdir": str(here / "a b"),
            "run_ids": [run_id],
            "program_exit_code": 7,
            "num_tensors": tensors,
            "num_nonfinite": bad,
            "unobserved": None,
            "stopped_by": None,
            "about": {"run_ids": [run_id], "is_newest": True, "num_others": 0, "num_bad_others": None},
            "has_nan_variable": False,
            "is_searched": True,
            "is_finished": True,
        }
        assert (nonfinite["op_name"], nonfinite["source"]["lineno"]) == ("Log", LOG_LINE)

    def test_only_the_run_of_the_program_decides_the_exit_code(self, here: Path) -> None:
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
        assert "the newest of 2. The other run recorded bad values." in ours.stderr.splitlines()[-2]
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
            f"tfdbg-arrow: the recording is incomplete: {what} recorded, as requested."
            for what in (
                "The steps outside of the schedule 2: were not",
                "2 of 4 steps were outside of the schedule 2: and were not",
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

    def test_a_mode_without_element_counts_is_reported(self, here: Path) -> None:
        write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "--mode", "SHAPE", "program.py")
        assert ours.returncode == 0
        assert "mode SHAPE does not look at their elements" in ours.stderr.splitlines()[-1]

    def test_a_program_without_tensors_is_not_called_healthy(self, here: Path) -> None:
        write(here, "program.py", "import tensorflow\n")
        ours = run(here, "program.py")
        assert ours.returncode == 0
        assert "no tensor was recorded in tfdbg_logdir" in ours.stderr.splitlines()[-1]

    def test_the_environment_can_turn_recording_off(self, here: Path) -> None:
        write(here, "program.py", BAD_PROGRAM)
        ours = run(here, "program.py", TFDBG_ARROW="0")
        assert (ours.returncode, ours.stdout) == (0, "loss nan 2\n")
        assert ours.stderr.splitlines()[-1] == "tfdbg-arrow: nothing was recorded: TFDBG_ARROW=0 is set"
        assert not (here / "tfdbg_logdir").exists()

    def test_ctrl_c_ends_the_program_and_keeps_the_recording(self, here: Path) -> None:
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
        assert "made -Inf in call 1 of loss" in stderr.splitlines()[-7]
        assert rows(here / "tfdbg_logdir", "SELECT is_clean_end FROM run") == [(True,)]
