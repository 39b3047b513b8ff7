"""Small logdirs for tests of the viewer, such as a model that takes the logarithm of 0 and a hostile recording."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tfdbg_arrow.schema.dtypes import encode_strings

from ..query.builder import CLEAN, INF, NAN, RunBuilder, counts

TRAIN = "/home/me/train.py"
TEXT = """import tensorflow as tf

def model(images):
    return tf.nn.softmax(dense(images))

def loss(probs):
    log_probs = tf.math.log(probs)
    scaled = tf.sqrt(offset)
    return -log_probs
"""
FRAMEWORK = ("/site/tensorflow/ops.py", 10, "apply_op", None, "framework")

SCRIPT = "</script><script>alert(1)</script>"
BIDI = "\u202eevil\u2066"
HOSTILE = (
    f"{SCRIPT}<img src=x onerror=alert(2)>",
    "\"' onmouseover='alert(3)' x=\"",
    f"{BIDI}\x1b[31mred\x07",
    '=HYPERLINK("http://evil.test","x")',
    "javascript:alert(4)",
    "{{ 7 * 7 }}{% raw %}",
    "<!--<script>-->]]>",
    "x" * 65_536,
)
"""Texts that must have no effect on any page."""


def line(run: RunBuilder, lineno: int, func: str) -> int:
    """Adds a stack trace with a frame of the framework, called from a line of TRAIN."""
    return run.stack(FRAMEWORK, (TRAIN, lineno, func, TEXT.splitlines()[lineno - 1].strip(), "user"))


def log_of_zero(path: Path, *, run_id: str = "run-a", **settings: object) -> Path:
    """Writes a run where Softmax returns 2 zeros, Log makes them -Inf at event 3, and Sqrt has a NaN at event 5."""
    run = RunBuilder(run_id, **settings)
    run.add("source_file", source_file_id=0, file_path=TRAIN, source_text=TEXT)
    run.add("source_file", source_file_id=1, file_path=FRAMEWORK[0], source_text=None)
    graph = (
        run.graph("loss")
        .op("images", "Placeholder", stack=line(run, 3, "model"))
        .op("probs", "Softmax", ["images"], stack=line(run, 4, "model"))
        .op("Log", "Log", ["probs"], stack=line(run, 7, "loss"))
        .op("offset", "Placeholder", stack=line(run, 6, "loss"))
        .op("Sqrt", "Sqrt", ["offset"], stack=line(run, 8, "loss"))
        .op("Neg", "Neg", ["Log"], stack=line(run, 9, "loss"))
        .op("handle", "VarHandleOp", dtypes=("float32",), not_recorded="op_regex")
        .function("__inference_loss_7", ["images"], ["Neg"])
    )
    call = run.execution("__inference_loss_7", graph=graph, stack=line(run, 9, "loss"))
    run.tensor(graph, "images", {**CLEAN, "step": 0}, execution=call)
    run.tensor(graph, "probs", {**counts(zero=2, pos=4), "step": 1}, execution=call)
    run.tensor(graph, "Log", {**counts(neg_inf=2, neg=4), "step": 1}, execution=call)
    run.tensor(graph, "offset", {**counts(neg=1, pos=1), "step": 1}, execution=call)
    run.tensor(graph, "Sqrt", {**NAN, "step": 2}, execution=call)
    run.tensor(graph, "Neg", {**counts(pos_inf=2, pos=4), "step": 2}, execution=call)
    return run.write(path)


def healthy(path: Path) -> Path:
    """Writes a run with one finite tensor and an op whose output was not recorded."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul").op("y", "Add", not_recorded="op_regex")
    run.tensor(graph, "x", CLEAN)
    return run.write(path)


def hostile(path: Path, *, run_id: str = "run-a", host: str = HOSTILE[0], bad: Mapping[str, object] = NAN) -> Path:
    """Writes a run whose texts are all from HOSTILE. Its ops have bad tensors, so that all pages show them."""
    run = RunBuilder(
        run_id,
        host_name=host,
        command_line=f'["{SCRIPT}"]',
        worker=HOSTILE[1],
        run_name=f"run {HOSTILE[0]}",
        tags=json.dumps(HOSTILE),
        notes="\n".join(HOSTILE),
    )
    for number, text in enumerate(HOSTILE):
        run.add("source_file", source_file_id=number, file_path=text, source_text=f"{text}\n{text}\n")
        graph = run.graph(text)
        stack = run.stack((text, 1, text, text, "user"), (text, 2, text, text, "framework"))
        op = text.replace(":", ";")  # the builder expects an output slot after a colon
        graph.op(f"in-{op}", text, stack=stack).op(op, text, [f"in-{op}"], stack=stack)
        run.rows["graph_op"][-1].update(
            layer=text, role=text, forward_graph_id=graph.graph_id, forward_op_name=f"in-{op}"
        )
        graph.op(f"not-{op}", text, not_recorded=text)
        run.tensor(graph, f"in-{op}", CLEAN)
        event = run.tensor(graph, op, {**bad, "dtype": "string"})
        value = encode_strings([text.encode()])
        run.add("tensor_value", event_index=event, dtype="string", shape=[1], value=value)
        run.add("mark", event_index=0, label=text, value=text)
        run.add("capture_stat", stat="dropped", subject=text, reason=text)
        run.execution(text, stack=stack)
    return run.write(path)


def gradient(path: Path) -> Path:
    """Writes a run in which the layer `norm` takes the square root of 0 in step 2, in `root`, which `step` calls.

    The gradient is bad at event 3, and is assigned to a variable.
    """
    run = RunBuilder("run-a")
    run.add("source_file", source_file_id=0, file_path=TRAIN, source_text=TEXT)
    step = run.graph("step").op("x", "Placeholder").op("w", "Placeholder", dtypes=("resource",))
    step.op("call", "PartitionedCall", ["x"], stack=line(run, 4, "model"))
    step.op("assign", "AssignVariableOp", ["w", "call"], dtypes=())
    root = (
        run.graph("root").op("a", "Placeholder").op("dy", "Const").op("Sqrt", "Sqrt", ["a"], stack=line(run, 8, "loss"))
    )
    root.op("Grad", "SqrtGrad", ["Sqrt", "dy"], stack=run.stack(FRAMEWORK))
    run.rows["graph_op"][-1].update(
        layer="model/norm", role="gradient", forward_graph_id=root.graph_id, forward_op_name="Sqrt"
    )
    root.function("root_fn", ["a"], ["Grad"])
    step.calls("call", "root_fn", root)
    step.function("__inference_step_9", ["x", "w"], ["call"])
    run.rows["graph"][1]["outer_graph_id"] = 0
    call = run.execution("__inference_step_9", graph=step, stack=line(run, 9, "loss"))
    run.tensor(root, "dy", CLEAN, execution=call, site="call")
    run.tensor(root, "Sqrt", {**counts(zero=1, pos=1), "step": 2}, execution=call, site="call")
    run.tensor(root, "Grad", {**counts(pos_inf=1, pos=1), "step": 2}, execution=call, site="call")
    run.tensor(step, "call", {**counts(pos_inf=1, pos=1), "step": 2}, execution=call)
    return run.write(path)


def nested(path: Path) -> Path:
    """Writes a run of graph 0, `step`, which calls graph 1, `double`, and runs graph 2, `body`, in a loop three times.

    The Mul of `body` is bad from event 4 on. In `step`, the op `hub` has 30 consumers. The op `waiting` has only one
    input: a control input from `call`.
    """
    run = RunBuilder("run-a")
    run.add("source_file", source_file_id=0, file_path=TRAIN, source_text=TEXT)
    step = run.graph("step").op("x", "Placeholder").op("w", "Placeholder", not_recorded="dtype")
    step.op("call", "PartitionedCall", ["x", "w"], stack=line(run, 4, "model"))
    step.op("while", "While", ["call", "w"]).op("y", "Neg", ["while"]).op("hub", "Const")
    for number in range(30):
        step.op(f"use{number:02}", "Neg", ["hub"])
    step.op("waiting", "NoOp", dtypes=())
    run.add("graph_op_input", graph_id=0, op_name="waiting", input_index=0, is_control=True, source_op_name="call")
    double = (
        run.graph("double").op("a", "Placeholder").op("captured", "Placeholder").op("mul", "Mul", ["a", "captured"])
    )
    double.function("__inference_double_1", ["a"], ["mul"], captures=["captured"])
    body = run.graph("body").op("v", "Placeholder").op("k", "Placeholder").op("Mul", "Mul", ["v", "k"])
    body.function("body_fn", ["v", "k"], ["Mul", "k"])
    step.calls("call", "__inference_double_1", double).calls("while", "body_fn", body, attribute="body")
    step.function("__inference_step_9", ["x", "w"], ["y"])
    run.rows["graph"][1]["outer_graph_id"] = run.rows["graph"][2]["outer_graph_id"] = 0
    call = run.execution("__inference_step_9", graph=step, stack=line(run, 9, "loss"))
    run.tensor(step, "x", CLEAN, execution=call)
    run.tensor(double, "mul", CLEAN, execution=call, site="call")
    for iteration, health in enumerate((CLEAN, NAN, NAN)):
        run.tensor(body, "Mul", {**health, "step": 1}, execution=call, site="while/body", frame=9, iteration=iteration)
    run.tensor(step, "while", NAN, execution=call)
    run.tensor(step, "y", NAN, execution=call)
    return run.write(path)


def two_runs(path: Path) -> Path:
    """Writes two runs of a program. The Square and the Sqrt of two arguments differ, and run B has an additional op."""
    for run_id, is_b in (("run-a", False), ("run-b", True)):
        run = RunBuilder(run_id, host_name=run_id)
        run.add("source_file", source_file_id=0, file_path=TRAIN, source_text=TEXT)
        graph = (
            run.graph("f")
            .op("x", "Placeholder", stack=line(run, 3, "model"))
            .op("Square", inputs=["x"], stack=line(run, 4, "model"))
            .op("offset", "Placeholder", stack=line(run, 6, "loss"))
            .op("Sqrt", inputs=["offset"], stack=line(run, 8, "loss"))
        )
        if is_b:
            graph.op("Neg", inputs=["Sqrt"], stack=line(run, 9, "loss"))
        graph.function("__inference_f_1", ["x", "offset"], ["Sqrt"])
        call = run.execution("__inference_f_1", graph=graph)
        run.tensor(graph, "x", CLEAN, execution=call)
        run.tensor(graph, "Square", counts(pos=1, zero=1) if is_b else CLEAN, execution=call)
        run.tensor(graph, "offset", CLEAN, execution=call)
        run.tensor(graph, "Sqrt", NAN if is_b else CLEAN, execution=call)
        if is_b:
            run.tensor(graph, "Neg", NAN, execution=call)
        run.write(path)
    return path


def unused_infinity(path: Path, *, run_id: str = "run-a", **settings: object) -> Path:
    """Writes a run where the function step makes an infinity in step 3 that no op uses, so it does no harm."""
    run = RunBuilder(run_id, **settings)
    graph = run.graph("step").op("x", "Placeholder").op("y", "Mul", ["x"]).op("scaled_loss", "Mul", ["x"])
    graph.function("__inference_step_1", ["x"], ["y"])
    for step in range(5):
        call = run.execution("__inference_step_1", graph=graph)
        run.tensor(graph, "x", {**CLEAN, "step": step}, execution=call)
        run.tensor(graph, "y", {**CLEAN, "step": step}, execution=call)
        run.tensor(graph, "scaled_loss", {**(INF if step == 3 else CLEAN), "step": step}, execution=call)
    return run.write(path)
