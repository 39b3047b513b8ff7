"""Test `tfdbg-arrow run` with a program that calls TensorFlow's enable_dump_debug_info."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .running import rows, run, write


@pytest.mark.slow
class TestDumpDebugInfo:
    def test_its_settings_are_used_and_no_dump_is_written(self, here: Path) -> None:
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

    def test_disable_ends_the_recording_and_enable_starts_another(self, here: Path) -> None:
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
        assert "mode NO_TENSOR does not look at their elements" in ours.stderr
        assert rows(
            here / "logdir",
            "SELECT tensor_debug_mode, circular_buffer_size, is_clean_end, count(*) FILTER (op_type = 'Log') "
            "FROM run LEFT JOIN tensor_health AS t USING (run_id) GROUP BY run_id, 1, 2, 3 ORDER BY run_id",
        ) == [("FULL_HEALTH", -1, True, 1), ("NO_TENSOR", 1000, True, 0), ("FULL_HEALTH", -1, True, 1)]
        assert not (here / "dump").exists()
