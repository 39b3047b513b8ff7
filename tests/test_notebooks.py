"""Test a recording and every public answer in a real Jupyter kernel, with and without the package ipywidgets."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager

import tfdbg_arrow
from tfdbg_arrow import first_nonfinite, open_logdir, query, verify
from tfdbg_arrow.query.answers import Answers

Cells = list[nbformat.NotebookNode]

MODEL = """\
import tensorflow as tf
import tfdbg_arrow
from tfdbg_arrow import query

@tf.function
def loss(x):
    return tf.reduce_sum(tf.math.log(x))

def train(path, start):
    with tfdbg_arrow.capture(path, "FULL_TENSOR", histograms=True):
        for step in range(4):
            tfdbg_arrow.mark(step=step)
            loss(tf.constant([start - step, 1.0]))
"""
ANSWERS = (
    MODEL,
    "train('bad', 2.0); train('good', 9.0)",
    "tfdbg_arrow.is_recording(), tfdbg_arrow.is_writing(), tfdbg_arrow.flush(), tfdbg_arrow.disable()",
    "tfdbg_arrow.recover('bad')",
    "logdir, other = tfdbg_arrow.open_logdir('bad'), query.open_logdir('good')",
    "logdir",
    "logdir.show()",
    "tfdbg_arrow.first_nan('bad')",
    "first = tfdbg_arrow.first_nonfinite(logdir); first",
    "tfdbg_arrow.nonfinite(logdir)",
    "logdir.nonfinite(), logdir.first_nonfinite()",
    "query.read_reasons(logdir, first.event_index, run_id=first.run_id)",
    "query.provenance(logdir, first.event_index), logdir.provenance(first.event_index)",
    "query.spread(logdir, first.event_index), logdir.spread(first.event_index)",
    "query.history(logdir, 'Log'), logdir.history('Log')",
    "query.alerts(logdir), logdir.alerts(), query.builtin_rules()",
    "logdir.coverage(), logdir.about_runs(), logdir.info(), logdir.runs(), logdir.run_ids, logdir.broken_parts",
    "query.doctor('bad'), tfdbg_arrow.verify('bad'), logdir.verify()",
    "tfdbg_arrow.diff('bad', 'good'), logdir.diff(other)",
    "tfdbg_arrow.layer_health(logdir), logdir.layer_health()",
    "tfdbg_arrow.layer_differences(logdir, other), logdir.layer_differences(other)",
    "tfdbg_arrow.training_curves(logdir), logdir.training_curves()",
    "tfdbg_arrow.distributions(logdir, 'Log'), logdir.distributions('Log')",
    "query.user_source(first.stack), query.source_lines(logdir, first.source, run_id=first.run_id)",
    "query.to_arrow(logdir.nonfinite()), query.to_pandas(logdir.nonfinite()), query.to_polars(logdir.nonfinite())",
    "query.public_views(), query.views_sql('bad')",
    "logdir.sql('SELECT count(*) FROM tensor_health')",
    "logdir.rows('SELECT 1'), logdir.table('SELECT 1'), logdir.arrow('SELECT 1')",
    "logdir.polars('SELECT 1'), logdir.pandas('SELECT 1'), logdir.stream('SELECT 1', list)",
    "[query.export(logdir, f'exported.{format}', format=format) for format in ('duckdb', 'sqlite', 'csv')]",
    "tfdbg_arrow.write_repro(logdir, 'repro.py')",
    "logdir.refresh(), logdir.fetch(), logdir.close()",
)
RECORDER = {"MarkCallback", "disable_dump_debug_info", "enable", "enable_dump_debug_info"}
"""Public callables that are not asked about a logdir, and not used in this notebook."""


class Kernel:
    """A Jupyter kernel that runs in a directory of its own."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *, has_ipywidgets: bool) -> None:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
            monkeypatch.setenv(name, str(directory / name))
        if not has_ipywidgets:
            (directory / "without").mkdir()
            missing = "raise ModuleNotFoundError(\"No module named 'ipywidgets'\", name='ipywidgets')\n"
            (directory / "without" / "ipywidgets.py").write_text(missing)
            monkeypatch.setenv("PYTHONPATH", str(directory / "without"))
        self._directory = directory

    def run(self, *sources: str, during: Callable[[AsyncKernelManager], None] | None = None) -> Cells:
        """Runs cells, and returns them with their outputs. A cell that raises is no error."""
        cells = self._run(sources, during)
        with warnings.catch_warnings():  # nbclient leaves two sockets to the garbage collector
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        return cells

    def _run(self, sources: Sequence[str], during: Callable[[AsyncKernelManager], None] | None) -> Cells:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        manager = AsyncKernelManager()
        client = nbclient.NotebookClient(
            notebook, km=manager, allow_errors=True, timeout=300, resources={"metadata": {"path": str(self._directory)}}
        )
        beside = threading.Thread(target=lambda: None if during is None else during(manager))
        beside.start()
        try:
            client.execute()
        finally:
            beside.join()
        return list(notebook.cells)


def errors(cells: Cells) -> list[tuple[str, str, str]]:
    """Returns the source, class and message of each error of a cell."""
    return [
        (cell.source, output.ename, output.evalue)
        for cell in cells
        for output in cell.outputs
        if output.output_type == "error"
    ]


def shown(cell: nbformat.NotebookNode) -> dict[str, str]:
    """Returns what a cell shows as its result, by MIME type."""
    return {kind: str(data) for output in cell.outputs for kind, data in output.get("data", {}).items()}


def public_answers() -> set[str]:
    """Returns the names of the public functions, and of the methods of a logdir that are answers."""
    functions = {name for module in (tfdbg_arrow, query) for name in module.__all__ if name[0].islower()}
    functions -= {name for name in functions if not callable(getattr(tfdbg_arrow, name, getattr(query, name, None)))}
    methods = {name for name in vars(Answers) if not name.startswith("_")}
    return (
        functions | methods | {"show", "verify", "diff", "sql", "rows", "table", "arrow", "polars", "pandas", "stream"}
    )


def missing(names: set[str], sources: Sequence[str]) -> set[str]:
    return {name for name in names if not any(re.search(rf"\b{name}\(", source) for source in sources)}


@pytest.mark.slow
@pytest.mark.parametrize("has_ipywidgets", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_every_public_answer_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ipywidgets: bool) -> None:
    assert missing(public_answers(), ANSWERS) - RECORDER == {"of_run", "export_tensorboard"}
    kernel = Kernel(tmp_path, monkeypatch, has_ipywidgets=has_ipywidgets)
    check = "try:\n    import ipywidgets\nexcept ImportError:\n    print('without')"
    is_without, *cells = kernel.run(check, *ANSWERS)
    assert bool(is_without.outputs) != has_ipywidgets
    assert errors(cells) == []
    printed = [(cell.source, output) for cell in cells for output in cell.outputs if output.output_type == "stream"]
    assert [(source, output.text) for source, output in printed if output.name == "stdout"] == []
    assert {kind for cell in cells for kind in shown(cell)} <= {"text/plain", "text/html"}  # no widget
    sizes = {cell.source: len(shown(cell)["text/html"]) for cell in cells if cell.source in ("logdir", "logdir.show()")}
    assert sizes["logdir"] < 90_000
    assert sizes["logdir.show()"] < 250_000
    (first,) = (shown(cell) for cell in cells if cell.source.startswith("first = "))
    line = f"Cell In[{cells[0].execution_count}], line 7"
    assert line in first["text/html"]
    assert f"` at {line} made -Inf in step 2: from " in first["text/plain"]
    (history,) = (shown(cell) for cell in cells if cell.source == "logdir.show()")
    assert line in history["text/html"]


@pytest.mark.slow
def test_a_recording_after_an_interrupted_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = tmp_path / "ready"

    def interrupt(manager: AsyncKernelManager) -> None:
        deadline = time.monotonic() + 300
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        asyncio.run(manager.interrupt_kernel())

    cells = Kernel(tmp_path, monkeypatch, has_ipywidgets=False).run(
        MODEL,
        "tfdbg_arrow.enable('first')",
        "import pathlib\nfor step in range(10**9):\n    tfdbg_arrow.mark(step=step); loss(tf.constant([2.0, 1.0]))\n"
        "    if step == 20: pathlib.Path('ready').touch()",
        "tfdbg_arrow.is_recording()",
        "loss(tf.constant([0.0, 1.0]))",
        "tfdbg_arrow.disable()",
        "train('second', 2.0)",
        "tfdbg_arrow.first_nonfinite('second').source",
        during=interrupt,
    )
    assert [(cell, error) for cell, error, _ in errors(cells)] == [(cells[2].source, "KeyboardInterrupt")]
    assert shown(cells[3])["text/plain"] == "True"
    for name, step in (("first", None), ("second", 2)):
        found = first_nonfinite(tmp_path / name)
        assert found is not None
        assert (found.op_type, found.source and found.source.code) == (
            "Log",
            "return tf.reduce_sum(tf.math.log(x))",
        )
        assert step is None or found.step == step
        assert verify(tmp_path / name).is_intact
        with open_logdir(tmp_path / name) as logdir:
            assert logdir.rows("SELECT is_clean_end FROM run") == [(True,)]
