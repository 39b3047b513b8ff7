"""The query layer: reads logdirs with DuckDB; needs neither TensorFlow nor the writer."""

from __future__ import annotations

from tfdbg_arrow.query.alert_rules import Parameter, Rule, builtin_rules
from tfdbg_arrow.query.alerts import Alert, Alerts, alerts
from tfdbg_arrow.query.capture_stats import CaptureStat
from tfdbg_arrow.query.chain import Hop, Provenance, provenance
from tfdbg_arrow.query.coverage import Coverage, UnobservedOp, UnobservedOps
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
from tfdbg_arrow.query.doctor import Diagnosis, doctor
from tfdbg_arrow.query.export import Exported, ExportedTable, ExportFormat, export
from tfdbg_arrow.query.findings import Finding
from tfdbg_arrow.query.health import TensorHealth
from tfdbg_arrow.query.history import HistoryRow, history
from tfdbg_arrow.query.hops import TensorHop
from tfdbg_arrow.query.info import LogdirInfo, Run, TableInfo
from tfdbg_arrow.query.logdir import Logdir, open_logdir
from tfdbg_arrow.query.nonfinite import (
    InputTensor,
    NonFinite,
    Producer,
    first_nan,
    first_nonfinite,
    nonfinite,
)
from tfdbg_arrow.query.public_views import View, public_views, views_sql
from tfdbg_arrow.query.results import to_arrow, to_pandas, to_polars
from tfdbg_arrow.query.spread import Spread, SpreadHop, spread
from tfdbg_arrow.query.stacks import Frame, SourceLine, source_lines, user_source

__all__ = [
    "Alert",
    "Alerts",
    "CaptureStat",
    "Coverage",
    "Diagnosis",
    "Diff",
    "DiffInput",
    "DiffTensor",
    "Divergence",
    "DtypeChange",
    "ExportFormat",
    "Exported",
    "ExportedTable",
    "Finding",
    "Frame",
    "HistoryRow",
    "Hop",
    "InputTensor",
    "Logdir",
    "LogdirInfo",
    "NonFinite",
    "Parameter",
    "Producer",
    "Provenance",
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
    "source_lines",
    "spread",
    "to_arrow",
    "to_pandas",
    "to_polars",
    "user_source",
    "views_sql",
]
