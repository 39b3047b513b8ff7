"""Live stop: a recording stops the program at the first origin of a NaN or an infinity.

The writer stops the program, and the query layer finds the origin. These two layers do not import each other, so this
module connects them. Programs import the functions that start a recording from this module, so that each recording can
find origins.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfdbg_arrow.writer.active_recording import capture, enable, start
from tfdbg_arrow.writer.live_stop.stop import Origin, look_up_origins_with

if TYPE_CHECKING:
    from tfdbg_arrow.query import NonFinite

__all__ = ["capture", "enable", "find_origins", "start"]


def find_origins(logdir: Path, run_id: str, event_indexes: Sequence[int]) -> list[Origin]:
    """Returns the distinct origins of bad tensors of a run.

    Args:
        logdir: The logdir.
        run_id: The run.
        event_indexes: The event_index of each bad tensor.
    """
    from tfdbg_arrow.query import open_logdir, read_reasons
    from tfdbg_arrow.query.nonfinite_search import origins_of
    from tfdbg_arrow.query.present.tensors import nonfinite_in_brief
    from tfdbg_arrow.query.present.text import text_of

    with open_logdir(logdir) as opened:
        origins = origins_of(opened, event_indexes, run_id=run_id)
        reasons = [read_reasons(opened, origin) for origin in origins]
    return [
        Origin(nonfinite=origin, text=text_of(nonfinite_in_brief(origin, reasons_)), key=_key(origin))
        for origin, reasons_ in zip(origins, reasons, strict=True)
    ]


def _key(origin: NonFinite) -> object:
    source = origin.source
    line = None if source is None else (source.file_path, source.lineno)
    return (origin.graph_name, origin.op_name, origin.op_type, origin.output_slot, line)


look_up_origins_with(find_origins)
