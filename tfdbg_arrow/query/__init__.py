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
    from tfdbg_arrow.query.alert_rules.answer import Alert as Alert
    from tfdbg_arrow.query.alert_rules.answer import AlertFinding as AlertFinding
    from tfdbg_arrow.query.alert_rules.answer import Alerts as Alerts
    from tfdbg_arrow.query.alert_rules.answer import RuleSummary as RuleSummary
    from tfdbg_arrow.query.alert_rules.answer import alerts as alerts
    from tfdbg_arrow.query.alert_rules.rules import Parameter as Parameter
    from tfdbg_arrow.query.alert_rules.rules import Rule as Rule
    from tfdbg_arrow.query.alert_rules.rules import builtin_rules as builtin_rules
    from tfdbg_arrow.query.answers import Logdir as Logdir
    from tfdbg_arrow.query.answers import open_logdir as open_logdir
    from tfdbg_arrow.query.asked_runs import AboutRuns as AboutRuns
    from tfdbg_arrow.query.bad_samples import BadSamples as BadSamples
    from tfdbg_arrow.query.bad_samples import StepInput as StepInput
    from tfdbg_arrow.query.capture_stats import CaptureStat as CaptureStat
    from tfdbg_arrow.query.coverage import Coverage as Coverage
    from tfdbg_arrow.query.coverage import UnobservedOp as UnobservedOp
    from tfdbg_arrow.query.coverage import UnobservedOps as UnobservedOps
    from tfdbg_arrow.query.explanation import Explanation as Explanation
    from tfdbg_arrow.query.explanation import Growth as Growth
    from tfdbg_arrow.query.explanation import Reasons as Reasons
    from tfdbg_arrow.query.explanation import read_reasons as read_reasons
    from tfdbg_arrow.query.export_formats import ExportFormat as ExportFormat
    from tfdbg_arrow.query.exports import Exported as Exported
    from tfdbg_arrow.query.exports import ExportedTable as ExportedTable
    from tfdbg_arrow.query.exports import export as export
    from tfdbg_arrow.query.exports.run_events import RunEvents as RunEvents
    from tfdbg_arrow.query.exports.training_events import TensorBoardExport as TensorBoardExport
    from tfdbg_arrow.query.exports.training_events import export_tensorboard as export_tensorboard
    from tfdbg_arrow.query.info import LogdirInfo as LogdirInfo
    from tfdbg_arrow.query.info import Run as Run
    from tfdbg_arrow.query.info import TableInfo as TableInfo
    from tfdbg_arrow.query.integrity.broken_parts import BrokenPart as BrokenPart
    from tfdbg_arrow.query.integrity.diagnosis import Diagnosis as Diagnosis
    from tfdbg_arrow.query.integrity.diagnosis import doctor as doctor
    from tfdbg_arrow.query.integrity.run_findings import Finding as Finding
    from tfdbg_arrow.query.integrity.verification import Deviation as Deviation
    from tfdbg_arrow.query.integrity.verification import Verification as Verification
    from tfdbg_arrow.query.integrity.verification import verify as verify
    from tfdbg_arrow.query.logdir.public_views import View as View
    from tfdbg_arrow.query.logdir.public_views import public_views as public_views
    from tfdbg_arrow.query.logdir.public_views import views_sql as views_sql
    from tfdbg_arrow.query.model_health import layer_health as layer_health
    from tfdbg_arrow.query.model_health import training_curves as training_curves
    from tfdbg_arrow.query.model_health.answers import Cell as Cell
    from tfdbg_arrow.query.model_health.answers import Column as Column
    from tfdbg_arrow.query.model_health.answers import ColumnCalls as ColumnCalls
    from tfdbg_arrow.query.model_health.answers import Curve as Curve
    from tfdbg_arrow.query.model_health.answers import LayerDifferences as LayerDifferences
    from tfdbg_arrow.query.model_health.answers import LayerHealth as LayerHealth
    from tfdbg_arrow.query.model_health.answers import LayerMap as LayerMap
    from tfdbg_arrow.query.model_health.answers import LayerRow as LayerRow
    from tfdbg_arrow.query.model_health.answers import Measure as Measure
    from tfdbg_arrow.query.model_health.answers import Parting as Parting
    from tfdbg_arrow.query.model_health.answers import TrainingCurves as TrainingCurves
    from tfdbg_arrow.query.model_health.differences import layer_differences as layer_differences
    from tfdbg_arrow.query.model_health.histograms import Distributions as Distributions
    from tfdbg_arrow.query.model_health.histograms import distributions as distributions
    from tfdbg_arrow.query.nonfinite_search import first_nan as first_nan
    from tfdbg_arrow.query.nonfinite_search import first_nonfinite as first_nonfinite
    from tfdbg_arrow.query.nonfinite_search import nonfinite as nonfinite
    from tfdbg_arrow.query.nonfinite_tensor import FunctionCall as FunctionCall
    from tfdbg_arrow.query.nonfinite_tensor import InputTensor as InputTensor
    from tfdbg_arrow.query.nonfinite_tensor import NonFinite as NonFinite
    from tfdbg_arrow.query.nonfinite_tensor import Producer as Producer
    from tfdbg_arrow.query.recorded import TensorHealth as TensorHealth
    from tfdbg_arrow.query.results import to_arrow as to_arrow
    from tfdbg_arrow.query.results import to_pandas as to_pandas
    from tfdbg_arrow.query.results import to_polars as to_polars
    from tfdbg_arrow.query.run_diff import diff as diff
    from tfdbg_arrow.query.run_diff.answer import Diff as Diff
    from tfdbg_arrow.query.run_diff.answer import DiffInput as DiffInput
    from tfdbg_arrow.query.run_diff.answer import DiffTensor as DiffTensor
    from tfdbg_arrow.query.run_diff.answer import Divergence as Divergence
    from tfdbg_arrow.query.run_diff.answer import DtypeChange as DtypeChange
    from tfdbg_arrow.query.run_diff.answer import Setting as Setting
    from tfdbg_arrow.query.run_diff.answer import Unaligned as Unaligned
    from tfdbg_arrow.query.run_diff.answer import UnalignedOp as UnalignedOp
    from tfdbg_arrow.query.run_diff.answer import WorstElement as WorstElement
    from tfdbg_arrow.query.stacks import Frame as Frame
    from tfdbg_arrow.query.stacks import SourceLine as SourceLine
    from tfdbg_arrow.query.stacks import source_lines as source_lines
    from tfdbg_arrow.query.stacks import user_source as user_source
    from tfdbg_arrow.query.step_inputs import SampleInput as SampleInput
    from tfdbg_arrow.query.tensor_history import HistoryRow as HistoryRow
    from tfdbg_arrow.query.tensor_history import history as history
    from tfdbg_arrow.query.trace_back import Hop as Hop
    from tfdbg_arrow.query.trace_back import Provenance as Provenance
    from tfdbg_arrow.query.trace_back import TensorHop as TensorHop
    from tfdbg_arrow.query.trace_back import provenance as provenance
    from tfdbg_arrow.query.trace_forward import Spread as Spread
    from tfdbg_arrow.query.trace_forward import SpreadHop as SpreadHop
    from tfdbg_arrow.query.trace_forward import spread as spread
    from tfdbg_arrow.query.user_places import CallSite as CallSite
    from tfdbg_arrow.query.user_places import Forward as Forward

__getattr__, __dir__ = lazy_names(__name__)


def _texts() -> Texts:
    """Returns the object that writes the texts of answers. Its module is imported on first use."""
    from tfdbg_arrow.query.present import answers

    return answers


Displayed.shown_by = _texts
