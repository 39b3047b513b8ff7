"""The query layer: reads logdirs with DuckDB. It needs neither TensorFlow nor the writer.

* `logdir`: an open logdir, as tables and views over its live parts. `engine.py` defines the interface of every engine;
  `spark.py` is an engine on Spark, and `sandbox` runs SQL in a separate process.
* `flow`: which tensors were computed from which. `nonfinite.py`, `provenance.py`, `spread.py` and `explanation` use it.
* `alert_rules`, `diff`, `coverage.py`, `diagnosis`: anomalies in a run, differences between two runs, tensors that were
  not recorded, and problems of a logdir.
* `verification`: checks that a logdir is unchanged since it was written.
* `structure`, `windows`, `history.py`, `values.py`: graphs, rows and series for display.
* `exports`, `results.py`: the same data for other tools.
"""

from __future__ import annotations

from tfdbg_arrow.query.alert_rules.alert import Alert
from tfdbg_arrow.query.alert_rules.answer import Alerts, alerts
from tfdbg_arrow.query.alert_rules.rollup import AlertFinding
from tfdbg_arrow.query.alert_rules.rules import Parameter, Rule, builtin_rules
from tfdbg_arrow.query.bad_tensor import CallSite, Forward, InputTensor, NonFinite, Producer
from tfdbg_arrow.query.capture_stats import CaptureStat
from tfdbg_arrow.query.coverage import Coverage, UnobservedOp, UnobservedOps
from tfdbg_arrow.query.diagnosis import Diagnosis, doctor
from tfdbg_arrow.query.diagnosis.findings import Finding
from tfdbg_arrow.query.diff import (
    Diff,
    DiffInput,
    DiffTensor,
    Divergence,
    DtypeChange,
    Setting,
    Unaligned,
    UnalignedOp,
    WorstElement,
    diff,
)
from tfdbg_arrow.query.explanation import Explanation, Growth, Reasons, read_reasons
from tfdbg_arrow.query.exports import Exported, ExportedTable, ExportFormat, export
from tfdbg_arrow.query.health import TensorHealth
from tfdbg_arrow.query.history import HistoryRow, history
from tfdbg_arrow.query.hops import TensorHop
from tfdbg_arrow.query.info import LogdirInfo, Run, TableInfo
from tfdbg_arrow.query.logdir import Logdir, open_logdir
from tfdbg_arrow.query.logdir.broken_parts import BrokenPart
from tfdbg_arrow.query.logdir.public_views import View, public_views, views_sql
from tfdbg_arrow.query.nonfinite import first_nan, first_nonfinite, nonfinite
from tfdbg_arrow.query.provenance import Hop, Provenance, provenance
from tfdbg_arrow.query.results import to_arrow, to_pandas, to_polars
from tfdbg_arrow.query.spread import Spread, SpreadHop, spread
from tfdbg_arrow.query.stacks import Frame, SourceLine, source_lines, user_source
from tfdbg_arrow.query.verification import Verification, verify
from tfdbg_arrow.query.verification.findings import Deviation

__all__ = [
    "Alert",
    "AlertFinding",
    "Alerts",
    "BrokenPart",
    "CallSite",
    "CaptureStat",
    "Coverage",
    "Deviation",
    "Diagnosis",
    "Diff",
    "DiffInput",
    "DiffTensor",
    "Divergence",
    "DtypeChange",
    "Explanation",
    "ExportFormat",
    "Exported",
    "ExportedTable",
    "Finding",
    "Forward",
    "Frame",
    "Growth",
    "HistoryRow",
    "Hop",
    "InputTensor",
    "Logdir",
    "LogdirInfo",
    "NonFinite",
    "Parameter",
    "Producer",
    "Provenance",
    "Reasons",
    "Rule",
    "Run",
    "Setting",
    "SourceLine",
    "Spread",
    "SpreadHop",
    "TableInfo",
    "TensorHealth",
    "TensorHop",
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
    "doctor",
    "export",
    "first_nan",
    "first_nonfinite",
    "history",
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
    "user_source",
    "verify",
    "views_sql",
]
