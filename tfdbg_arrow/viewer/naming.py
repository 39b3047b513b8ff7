"""Names and texts for tensors, alerts, times and files on a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Protocol

from tfdbg_arrow import safe_text
from tfdbg_arrow.query import Alert, Run, wording
from tfdbg_arrow.query.nonfinite_tensor import FunctionCall
from tfdbg_arrow.query.present import tensors
from tfdbg_arrow.query.present.runs import command_words
from tfdbg_arrow.query.stacks import file_name
from tfdbg_arrow.query.user_places import CallSite
from tfdbg_arrow.safe_text import printable, shortened

BORDERS = {
    **wording.HOW,
    "graph": "taken directly",
    "variable": "through a variable",
    "eager": "taken directly",
    "external": "from outside",
}
"""How a tensor reached the op that used it, by `Hop.how`."""
ROLES = {
    **tensors.ROLES,
    "propagator": "passed it on",
    "cause": "finite input",
    "infinite": "infinite input",
}
"""The role of a tensor on the path back from a bad tensor, by `Hop.role`."""


_MAX_NAME = 60
"""Maximum number of characters of a run's name. The length is limited because the text of a logdir is untrusted."""


class NamedTensor(Protocol):
    """The attributes that form a tensor's name; NonFinite, Hop, TensorRow and Alert have them."""

    @property
    def op_name(self) -> str | None:
        """The name of the op in its graph."""

    @property
    def op_type(self) -> str | None:
        """The op type."""

    @property
    def output_slot(self) -> int | None:
        """The index of the output."""


def tensor_name(tensor: NamedTensor) -> str:
    """Returns a tensor's name, as `Log:0`, or a description if it has no name."""
    if tensor.op_type is None and tensor.op_name is None:
        return "a tensor from outside"
    slot = "" if tensor.output_slot is None else f":{tensor.output_slot}"
    return f"{tensor.op_name or short_function_name(tensor.op_type or '')}{slot}"


def alert_name(alert: Alert) -> str:
    """Returns the name of the tensor or function that an alert is about."""
    if alert.op_name is None and alert.op_type is None and alert.graph_name is not None:
        return f"the function {alert.graph_name}"
    return tensor_name(alert)


def short_function_name(op_type: str) -> str:
    """Returns a function's name without the parts that TensorFlow adds: `__inference_step_42` becomes `step`."""
    for prefix in ("__inference_", "__forward_", "__backward_"):
        if op_type.startswith(prefix):
            name, _, number = op_type.removeprefix(prefix).rpartition("_")
            return name if name and number.isdecimal() else op_type
    return op_type


def time_text(wall_time_ns: int) -> str:
    """Returns a time as `2026-11-20 16:30:00 UTC`."""
    try:
        return f"{safe_text.time_text(wall_time_ns)} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{wall_time_ns} ns"


def duration_text(nanoseconds: int) -> str:
    """Returns a duration as `1 h 2 min`, `3.2 s`."""
    seconds = nanoseconds / 1e9
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def offset_text(nanoseconds: int) -> str:
    """Returns a time since the start of a run as `3.205 s`, `2:03.1`, `1:02:03`."""
    seconds = abs(nanoseconds) / 1e9
    sign = "-" if nanoseconds < 0 else ""
    if seconds < 60:
        return f"{sign}{seconds:.3f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{sign}{minutes}:{rest:02}.{int(seconds * 10) % 10}"
    return f"{sign}{minutes // 60}:{minutes % 60:02}:{rest:02}"


def device_text(device_name: str) -> str:
    """Returns a device's name without the job: `/job:localhost/replica:0/task:0/device:CPU:0` becomes `CPU:0`."""
    return device_name.rpartition("/device:")[2] or device_name


def moment_text(step: int | None, call: FunctionCall | None) -> str | None:
    """Returns the name of a moment, such as `step 20` or `call 10 of train_step`; None if it has no name."""
    if step is not None:
        return f"step {step:,}"
    return None if call is None else f"call {call.number:,} of {call.function}"


def call_groups(calls: Sequence[CallSite]) -> list[tuple[CallSite, str]]:
    """Returns one call of each line, innermost first, with a text such as `calls step, then loss`."""
    groups = [list(group) for _, group in groupby(calls, key=lambda call: call.source and call.source.place)]
    return [(group[0], _called_text(group)) for group in groups]


def _called_text(group: Sequence[CallSite]) -> str:
    functions = list(dict.fromkeys(call.function for call in reversed(group) if call.function))
    calls = f"calls {', then '.join(functions)}" if functions else ""
    layers = [f"layer {call.layer}" for call in group if call.layer][:1]
    return ", ".join([*([calls] if calls else []), *layers])


def run_title(run: Run) -> str:
    """Returns the title of a run: its name, its worker, its program or its ID, whichever of these is known first."""
    title = run.run_name or run.worker or program_name(run.command_line) or run.run_id
    return printable(shortened(title, _MAX_NAME))


def program_name(command_line: str | None) -> str | None:
    """Returns the name of the script or module in a recorded command line; None if it is not known."""
    words = (command_words(command_line or "[]") or [])[1:]
    script = next((word for word in words if word.endswith((".py", ".ipynb"))), None)
    if script is not None:
        return file_name(script)
    return words[words.index("-m") + 1] if "-m" in words[:-1] else None


def run_labels(runs: Sequence[Run], *, bad_run_ids: Collection[str]) -> dict[str, str]:
    """Returns a label for each run, by run ID, such as `newest · train.py · 01:08 · bad values`.

    All labels differ: labels that would be equal include the IDs of the runs. A label does not name the step of the
    first bad value, because this value may have done no harm.

    Args:
        runs: The runs, oldest first.
        bad_run_ids: The IDs of the runs with bad tensors.
    """
    labels = {}
    for run in runs:
        facts = ["newest"] if run is runs[-1] and len(runs) > 1 else []
        facts.append(run_title(run))
        time, newest = time_text(run.wall_time_ns), time_text(runs[-1].wall_time_ns)
        facts.append(time[11:16] if time[:10] == newest[:10] else time[:16])
        if run.run_id in bad_run_ids:
            facts.append("bad values")
        labels[run.run_id] = " · ".join(facts)
    numbers = Counter(labels.values())
    return {run_id: label if numbers[label] == 1 else f"{label} · {run_id}" for run_id, label in labels.items()}
