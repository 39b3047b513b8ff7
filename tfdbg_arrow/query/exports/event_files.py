"""Event files of TensorBoard: names, records and summaries. No other module of the query layer imports TensorBoard.

| in an export | summary | read as |
|---|---|---|
| a number | `simple_value`, a float32 | a scalar |
| how elements are distributed | a tensor of shape (k, 3): left edge, right edge, count of each bucket | a histogram |
| a sentence | a tensor of one string | a text, in Markdown |

Names and times come from the run, so equal runs give equal files. TensorBoard's own `EventFileWriter` is not used: it
would import TensorFlow, and would name files after the exporting process.

Source: tensorboard/compat/proto/event.proto, and the `metadata.py` of TensorBoard's plugins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tfdbg_arrow.errors import MissingDependencyError, install_command
from tfdbg_arrow.query.info import Run
from tfdbg_arrow.query.model_health.histograms import Distributions
from tfdbg_arrow.safe_text import printable, shortened
from tfdbg_arrow.storage.disk import write_whole

_SUFFIX = ".tfdbg_arrow"
_FILE_NAME = re.compile(rf"events\.out\.tfevents\.\d{{10,}}\.[A-Za-z0-9.-]{{1,64}}\.\d+\.0{re.escape(_SUFFIX)}")
_LARGEST = float(np.finfo(np.float32).max)
_LARGEST_EDGE = float(np.finfo(np.float64).max)
_MAX_TAG = 200
"""Maximum number of characters of a tag. TensorBoard shows it as the title of a chart."""


class EventFile:
    """Appends to the event file of a run. Each record is written in one call, so readers may read at any time.

    Args:
        directory: The directory of the run; it is created if it is missing.
        run: The run.

    Raises:
        MissingDependencyError: tensorboard is not installed.
        OSError: The file cannot be opened.
    """

    def __init__(self, directory: Path, run: Run) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
        except ImportError as error:
            raise MissingDependencyError(
                f"tensorboard is not installed; run: {install_command('tensorboard')}"
            ) from error
        directory.mkdir(exist_ok=True)
        host = re.sub(r"[^A-Za-z0-9.-]+", "-", run.host_name or "")[:64] or "host"
        name = f"{max(run.wall_time_ns, 0) // 10**9:010d}.{host}.{max(run.pid or 0, 0)}.0{_SUFFIX}"
        self._file = open(directory / f"events.out.tfevents.{name}", "ab", buffering=0)  # noqa: SIM115
        if not self._file.tell():
            self._write(Event(wall_time=run.wall_time_ns / 1e9, file_version="brain.Event:2"))

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, position: int, wall_time_ns: int, summaries: Iterable[Any]) -> None:
        """Appends summaries of one step.

        Args:
            position: The step.
            wall_time_ns: The time of the step, in nanoseconds since 1970-01-01T00:00:00Z.
            summaries: The return values of `scalar`, `histogram` and `text`.

        Raises:
            OSError: The file cannot be written.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._write(Event(step=position, wall_time=wall_time_ns / 1e9, summary=Summary(value=summaries)))

    def _write(self, event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        write_whole(self._file, record.getvalue())


def is_run_directory(path: Path) -> bool:
    """Returns whether a directory contains an event file of an export, and nothing else."""
    if path.is_symlink() or not path.is_dir():
        return False
    files = list(path.iterdir())
    return bool(files) and all(file.is_file() and _FILE_NAME.fullmatch(file.name) for file in files)


class Tags:
    """Gives each quantity of a run a unique tag that is safe to show."""

    def __init__(self) -> None:
        self._tags: dict[Hashable, str] = {}
        self._used: set[str] = set()

    def of(self, name: str, *, key: Hashable = None) -> str:
        """Returns the tag of a quantity: its name, changed if it is unprintable, too long or already used as a tag.

        Args:
            name: The name.
            key: The value that identifies the quantity; None means the name.
        """
        key = name if key is None else key
        if key not in self._tags:
            text = shortened(printable(name), _MAX_TAG)
            tag, number = text, 2
            while tag in self._used:
                tag, number = f"{text} {number}", number + 1
            self._tags[key] = tag
            self._used.add(tag)
        return self._tags[key]


def scalar(tag: str, number: float) -> Any:
    """Returns the summary of a number. A finite number beyond the range of float32 becomes the largest float32."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    within = max(-_LARGEST, min(number, _LARGEST)) if math.isfinite(number) else number
    return Summary.Value(tag=tag, simple_value=within)


def text(tag: str, sentence: str) -> Any:
    """Returns the summary of a sentence. The text is indented, so that Markdown shows quoted code unchanged."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text import metadata as text_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    metadata = text_metadata.create_summary_metadata(display_name="", description="")
    value = make_tensor_proto(f"    {printable(sentence)}".encode())
    return Summary.Value(tag=tag, metadata=metadata, tensor=value)


def histogram(tag: str, distributions: Distributions, column: int) -> Any | None:
    """Returns the summary of one column of distributions; None if no element is finite.

    The buckets are those of the distributions, in the order from negative to positive numbers. The zeros are in a
    bucket that fills the gap between negative and positive numbers. NaN and infinities are in no bucket.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram import metadata as histogram_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    negative, positive, num_zero = (
        distributions.negative[column],
        distributions.positive[column],
        distributions.num_zero[column],
    )
    used = [index for index in range(len(distributions.exponents)) if negative[index] or positive[index]]
    if not used and not num_zero:
        return None
    least = distributions.bounds(used[0])[0] if used else 0.5
    buckets: list[tuple[float, float, float]] = []
    for sign, counts in ((-1, negative), (1, positive)):
        of_sign = [index for index in used if counts[index]]
        for index in range(used[0], of_sign[-1] + 1) if of_sign else ():
            low, high = distributions.bounds(index)
            buckets.append((sign * low, sign * min(high, _LARGEST_EDGE), counts[index]))
        if sign < 0:
            buckets = [(high, low, count) for low, high, count in reversed(buckets)]
            if num_zero or (of_sign and any(positive)):
                buckets.append((-least, least, num_zero))
    metadata = histogram_metadata.create_summary_metadata(display_name="", description="")
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(np.array(buckets, np.float64)))
