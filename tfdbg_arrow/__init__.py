"""tfdbg_arrow: find the op that created the first NaN or infinity, and the line of code that created the op.

The public names are imported on first use. Importing the package imports neither TensorFlow nor DuckDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdbg_arrow import errors as errors
from tfdbg_arrow._version import __version__ as __version__
from tfdbg_arrow.facade import lazy_names

if TYPE_CHECKING:
    from tfdbg_arrow.query import Diff as Diff
    from tfdbg_arrow.query import Logdir as Logdir
    from tfdbg_arrow.query import NonFinite as NonFinite
    from tfdbg_arrow.query import Verification as Verification
    from tfdbg_arrow.query import diff as diff
    from tfdbg_arrow.query import distributions as distributions
    from tfdbg_arrow.query import first_nan as first_nan
    from tfdbg_arrow.query import first_nonfinite as first_nonfinite
    from tfdbg_arrow.query import layer_differences as layer_differences
    from tfdbg_arrow.query import layer_health as layer_health
    from tfdbg_arrow.query import nonfinite as nonfinite
    from tfdbg_arrow.query import open_logdir as open_logdir
    from tfdbg_arrow.query import training_curves as training_curves
    from tfdbg_arrow.query import verify as verify
    from tfdbg_arrow.reproduction import Repro as Repro
    from tfdbg_arrow.reproduction import write_repro as write_repro
    from tfdbg_arrow.stop import capture as capture
    from tfdbg_arrow.stop import enable as enable
    from tfdbg_arrow.writer.active_recording import disable as disable
    from tfdbg_arrow.writer.active_recording import flush as flush
    from tfdbg_arrow.writer.active_recording import is_recording as is_recording
    from tfdbg_arrow.writer.active_recording import is_writing as is_writing
    from tfdbg_arrow.writer.active_recording import mark as mark
    from tfdbg_arrow.writer.keras import MarkCallback as MarkCallback
    from tfdbg_arrow.writer.launch import disable_dump_debug_info as disable_dump_debug_info
    from tfdbg_arrow.writer.launch import enable_dump_debug_info as enable_dump_debug_info
    from tfdbg_arrow.writer.recover import recover as recover

__getattr__, __dir__ = lazy_names(__name__)
