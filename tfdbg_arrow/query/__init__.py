"""The query layer reads logdirs with DuckDB. It needs neither TensorFlow nor the writer.

The names below are imported on first use.

* `logdir`: an open logdir, as tables and views over its live parts.
* `answers.py`: `Logdir`, which has one method for each question.
* `engine.py`: the interface that all engines have. `database.py` opens DuckDB, and `spark.py` is an engine that runs on
  Spark.
* `sql_sandbox.py`: runs SQL in a separate process.
* `flow`: the data flow, that is, the inputs from which each tensor was computed. `nonfinite_search.py`,
  `trace_back.py`, `trace_forward.py` and `explanation` use the data flow.
* `alert_rules`: anomalies in a run.
* `run_diff`: differences between two runs.
* `coverage.py`: tensors that were not recorded.
* `asked_runs.py`: the runs that a question is about.
* `integrity`: finds damaged parts of a logdir, and reads the undamaged parts.
* `model_health`: series over the steps of a training: the health of layers in one run or two runs, curves, and
  distributions.
* `display`, `tensor_history.py`, `values.py`: graphs, rows and series for display.
* `exports`, `results.py`: the recorded data and the answers in the formats of other tools.
* `present`: turns answers into blocks of text and tables, and shows these blocks.
* `displayed.py`: how notebooks and terminals display an answer.
* `logdirs.py`: the logdirs below a directory.
* `following.py`: the progress of a training that is still running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdbg_arrow.facade import lazy_names
from tfdbg_arrow.query.displayed import Displayed, Texts

if TYPE_CHECKING:
    from tfdbg_arrow.query.alert_rules.answer import Alert, AlertFinding, Alerts, RuleSummary, alerts
    from tfdbg_arrow.query.alert_rules.rules import Parameter, Rule, builtin_rules
    from tfdbg_arrow.query.answers import Logdir, open_logdir
    from tfdbg_arrow.query.asked_runs import AboutRuns
    from tfdbg_arrow.query.bad_samples import BadSamples, StepInput
    from tfdbg_arrow.query.capture_stats import CaptureStat
    from tfdbg_arrow.query.coverage import Coverage, UnobservedOp, UnobservedOps
    from tfdbg_arrow.query.explanation import Explanation, Growth, Reasons, read_reasons
    from tfdbg_arrow.query.export_formats import ExportFormat
    from tfdbg_arrow.query.exports import Exported, ExportedTable, export
    from tfdbg_arrow.query.exports.run_events import RunEvents
    from tfdbg_arrow.query.exports.training_events import TensorBoardExport, export_tensorboard
    from tfdbg_arrow.query.info import LogdirInfo, Run, TableInfo
    from tfdbg_arrow.query.integrity.broken_parts import BrokenPart
    from tfdbg_arrow.query.integrity.diagnosis import Diagnosis, doctor
    from tfdbg_arrow.query.integrity.run_findings import Finding
    from tfdbg_arrow.query.integrity.verification import Deviation, Verification, verify
    from tfdbg_arrow.query.logdir.public_views import View, public_views, views_sql
    from tfdbg_arrow.query.model_health import (
        Cell,
        Column,
        ColumnCalls,
        Curve,
        Distributions,
        LayerDifferences,
        LayerHealth,
        LayerMap,
        LayerRow,
        Measure,
        Parting,
        TrainingCurves,
        distributions,
        layer_differences,
        layer_health,
        training_curves,
    )
    from tfdbg_arrow.query.nonfinite_search import first_nan, first_nonfinite, nonfinite
    from tfdbg_arrow.query.nonfinite_tensor import FunctionCall, InputTensor, NonFinite, Producer
    from tfdbg_arrow.query.recorded import TensorHealth
    from tfdbg_arrow.query.results import to_arrow, to_pandas, to_polars
    from tfdbg_arrow.query.run_diff import diff
    from tfdbg_arrow.query.run_diff.answer import (
        Diff,
        DiffInput,
        DiffTensor,
        Divergence,
        DtypeChange,
        Setting,
        Unaligned,
        UnalignedOp,
        WorstElement,
    )
    from tfdbg_arrow.query.stacks import Frame, SourceLine, source_lines, user_source
    from tfdbg_arrow.query.step_inputs import SampleInput
    from tfdbg_arrow.query.tensor_history import HistoryRow, history
    from tfdbg_arrow.query.trace_back import Hop, Provenance, TensorHop, provenance
    from tfdbg_arrow.query.trace_forward import Spread, SpreadHop, spread
    from tfdbg_arrow.query.user_places import CallSite, Forward

_NAMES_OF = {
    "tfdbg_arrow.query.alert_rules.answer": ["Alert", "AlertFinding", "Alerts", "RuleSummary", "alerts"],
    "tfdbg_arrow.query.alert_rules.rules": ["Parameter", "Rule", "builtin_rules"],
    "tfdbg_arrow.query.asked_runs": ["AboutRuns"],
    "tfdbg_arrow.query.bad_samples": ["BadSamples", "StepInput"],
    "tfdbg_arrow.query.step_inputs": ["SampleInput"],
    "tfdbg_arrow.query.nonfinite_tensor": ["FunctionCall", "InputTensor", "NonFinite", "Producer"],
    "tfdbg_arrow.query.capture_stats": ["CaptureStat"],
    "tfdbg_arrow.query.coverage": ["Coverage", "UnobservedOp", "UnobservedOps"],
    "tfdbg_arrow.query.explanation": ["Explanation", "Growth", "Reasons", "read_reasons"],
    "tfdbg_arrow.query.export_formats": ["ExportFormat"],
    "tfdbg_arrow.query.exports": ["Exported", "ExportedTable", "export"],
    "tfdbg_arrow.query.exports.run_events": ["RunEvents"],
    "tfdbg_arrow.query.exports.training_events": ["TensorBoardExport", "export_tensorboard"],
    "tfdbg_arrow.query.info": ["LogdirInfo", "Run", "TableInfo"],
    "tfdbg_arrow.query.integrity.broken_parts": ["BrokenPart"],
    "tfdbg_arrow.query.integrity.diagnosis": ["Diagnosis", "doctor"],
    "tfdbg_arrow.query.integrity.run_findings": ["Finding"],
    "tfdbg_arrow.query.integrity.verification": ["Deviation", "Verification", "verify"],
    "tfdbg_arrow.query.answers": ["Logdir", "open_logdir"],
    "tfdbg_arrow.query.logdir.public_views": ["View", "public_views", "views_sql"],
    "tfdbg_arrow.query.model_health": [
        "Cell",
        "Column",
        "ColumnCalls",
        "Curve",
        "Distributions",
        "LayerDifferences",
        "LayerHealth",
        "LayerMap",
        "LayerRow",
        "Measure",
        "Parting",
        "TrainingCurves",
        "distributions",
        "layer_differences",
        "layer_health",
        "training_curves",
    ],
    "tfdbg_arrow.query.nonfinite_search": ["first_nan", "first_nonfinite", "nonfinite"],
    "tfdbg_arrow.query.recorded": ["TensorHealth"],
    "tfdbg_arrow.query.results": ["to_arrow", "to_pandas", "to_polars"],
    "tfdbg_arrow.query.run_diff": ["diff"],
    "tfdbg_arrow.query.run_diff.answer": [
        "Diff",
        "DiffInput",
        "DiffTensor",
        "Divergence",
        "DtypeChange",
        "Setting",
        "Unaligned",
        "UnalignedOp",
        "WorstElement",
    ],
    "tfdbg_arrow.query.user_places": ["CallSite", "Forward"],
    "tfdbg_arrow.query.stacks": ["Frame", "SourceLine", "source_lines", "user_source"],
    "tfdbg_arrow.query.tensor_history": ["HistoryRow", "history"],
    "tfdbg_arrow.query.trace_back": ["Hop", "Provenance", "TensorHop", "provenance"],
    "tfdbg_arrow.query.trace_forward": ["Spread", "SpreadHop", "spread"],
}

__all__ = [
    "AboutRuns",
    "Alert",
    "AlertFinding",
    "Alerts",
    "BadSamples",
    "BrokenPart",
    "CallSite",
    "CaptureStat",
    "Cell",
    "Column",
    "ColumnCalls",
    "Coverage",
    "Curve",
    "Deviation",
    "Diagnosis",
    "Diff",
    "DiffInput",
    "DiffTensor",
    "Distributions",
    "Divergence",
    "DtypeChange",
    "Explanation",
    "ExportFormat",
    "Exported",
    "ExportedTable",
    "Finding",
    "Forward",
    "Frame",
    "FunctionCall",
    "Growth",
    "HistoryRow",
    "Hop",
    "InputTensor",
    "LayerDifferences",
    "LayerHealth",
    "LayerMap",
    "LayerRow",
    "Logdir",
    "LogdirInfo",
    "Measure",
    "NonFinite",
    "Parameter",
    "Parting",
    "Producer",
    "Provenance",
    "Reasons",
    "Rule",
    "RuleSummary",
    "Run",
    "RunEvents",
    "SampleInput",
    "Setting",
    "SourceLine",
    "Spread",
    "SpreadHop",
    "StepInput",
    "TableInfo",
    "TensorBoardExport",
    "TensorHealth",
    "TensorHop",
    "TrainingCurves",
    "Unaligned",
    "UnalignedOp",
    "UnobservedOp",
    "UnobservedOps",
    "Verification",
    "View",
    "WorstElement",
    "alerts",
    "builtin_rules",
    "diff",
    "distributions",
    "doctor",
    "export",
    "export_tensorboard",
    "first_nan",
    "first_nonfinite",
    "history",
    "layer_differences",
    "layer_health",
    "nonfinite",
    "open_logdir",
    "provenance",
    "public_views",
    "read_reasons",
    "source_lines",
    "spread",
    "to_arrow",
    "to_pandas",
    "to_polars",
    "training_curves",
    "user_source",
    "verify",
    "views_sql",
]

__getattr__ = lazy_names(__name__, _NAMES_OF)


def _texts() -> Texts:
    """Returns the object that writes the texts of answers. Its module is imported on first use."""
    from tfdbg_arrow.query.present import answers

    return answers


Displayed.shown_by = _texts


def __dir__() -> list[str]:
    return sorted(__all__)
