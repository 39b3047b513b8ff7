"""Op callbacks of the program together with op callbacks of the recorder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

import tfdbg_arrow

from .counting import plain
from .lifecycle import X, doubling
from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")


class TestCallbacksOfTheProgram:
    def test_a_callback_sees_the_ops_of_the_program_and_stays(self, tmp_path: Path) -> None:
        def program() -> None:
            doubling()(X)
            tf.constant(1.0) + 2.0

        def seen_while(record: bool) -> list[str]:
            seen: list[str] = []

            def callback(op_type: Any, *_: Any, **__: Any) -> None:
                text = op_type.decode() if isinstance(op_type, bytes) else op_type
                seen.append("call" if text.startswith("__") else plain(text))

            op_callbacks.add_op_callback(callback)
            try:
                if record:
                    with tfdbg_arrow.capture(tmp_path):
                        program()
                    seen.append("recording ends")
                else:
                    program()
                    seen.append("recording ends")
                tf.constant(1.0) + 2.0
            finally:
                op_callbacks.remove_op_callback(callback)
            return seen

        recorded, bare = seen_while(record=True), seen_while(record=False)
        # TensorFlow itself adds a NoOp to a function that holds a stateful op.
        assert [kind for kind in recorded if kind != "NoOp"] == bare

    def test_a_recording_continues_after_the_callback_is_removed(self, tmp_path: Path) -> None:
        def callback(*_: Any, **__: Any) -> None:
            return None

        op_callbacks.add_op_callback(callback)
        with tfdbg_arrow.capture(tmp_path):
            op_callbacks.remove_op_callback(callback)
            tf.constant(1.0) + 2.0
        assert [row["op_type"] for row in rows(tmp_path, "execution")] == ["AddV2"]
