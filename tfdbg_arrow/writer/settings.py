"""The settings of a recording: declared in Request, and checked once, when the recording starts."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tfdbg_arrow.errors import LogdirError, SettingError
from tfdbg_arrow.safe_text import as_utf8, printable
from tfdbg_arrow.schema.dtypes import DTYPES, DTYPES_BY_NAME, dtype_name
from tfdbg_arrow.spool.circular_buffer import Retention
from tfdbg_arrow.storage.layout import MARKER_NAME
from tfdbg_arrow.storage.location import parse_location
from tfdbg_arrow.storage.marker import parse_marker
from tfdbg_arrow.writer.memory import DEFAULT_MAX_MEMORY_BYTES, MAX_MEMORY_BYTES, MIN_MEMORY_BYTES, MemoryShares
from tfdbg_arrow.writer.remote.uploader import (
    DEFAULT_MAX_LOCAL_BYTES,
    DEFAULT_UPLOAD_TIMEOUT_S,
    RemoteSettings,
    check_remote,
    local_logdir,
)
from tfdbg_arrow.writer.rows import parse_redact
from tfdbg_arrow.writer.selection import Choice, ChosenValues, Schedule, is_integer, parse_schedule, parse_values

_CHOICES = {
    "health_backend": ("auto", "native", "tensorflow"),
    "xla": ("auto", "inside", "observe", "keep"),
    "graphs": ("auto", "executed", "traced"),
    "when_full": ("wait", "drop"),
}

MIN_BUDGET_BYTES = 1 << 20
"""The smallest max_bytes. A budget has 16 pieces (`NUM_GRAINS`), and smaller pieces would hold few events."""
MAX_NAME = 200
"""Maximum number of characters of the name of a run, and of a tag."""
MAX_TAGS = 100
"""Maximum number of tags of a run. They are in one row, and lists of runs show them."""
MAX_NOTES = 10_000
"""Maximum number of characters of the notes."""

_MEASURABLE = frozenset(dtype.name for dtype in DTYPES if dtype.has_health)
_FLOATING = frozenset(dtype.name for dtype in DTYPES if dtype.has_health and dtype.kind in ("float", "complex"))
_KEEPABLE = _MEASURABLE | {"string"}
KEEPABLE_MASK = sum(1 << DTYPES_BY_NAME[name].number for name in _KEEPABLE)
"""Bit i is set if the elements of tensors of TensorFlow's DataType i can be kept."""


class TensorDebugMode(IntEnum):
    """How much is recorded of each tensor; the native core uses the same values."""

    NO_TENSOR = 0
    CURT_HEALTH = 1
    CONCISE_HEALTH = 2
    FULL_HEALTH = 3
    SHAPE = 4
    FULL_NUMERICS = 5
    FULL_TENSOR = 6

    @property
    def measures_health(self) -> bool:
        """True if the mode looks at the elements of tensors."""
        return self not in (TensorDebugMode.NO_TENSOR, TensorDebugMode.SHAPE)

    @property
    def counts_signs(self) -> bool:
        """True if the mode counts finite elements by their sign, and so can count a histogram."""
        return self in (TensorDebugMode.FULL_HEALTH, TensorDebugMode.FULL_NUMERICS, TensorDebugMode.FULL_TENSOR)

    @property
    def dtypes(self) -> frozenset[str]:
        """Names of the dtypes that the mode records unless the user chooses other dtypes."""
        if self is TensorDebugMode.NO_TENSOR:
            return frozenset()
        if self is TensorDebugMode.SHAPE:
            return _MEASURABLE
        return _KEEPABLE if self is TensorDebugMode.FULL_TENSOR else _FLOATING

    @property
    def recordable(self) -> frozenset[str]:
        """Names of the dtypes that the mode can record: dtypes that have a health, and in FULL_TENSOR also strings."""
        return _KEEPABLE if self is TensorDebugMode.FULL_TENSOR else _MEASURABLE


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked settings of a recording; enable() documents the settings that are not listed here.

    Attributes:
        logdir: The directory to write to.
        mode: How much is recorded of each tensor.
        dtypes: Names of the dtypes that are recorded.
        tensor_dtypes_text: The user's choice of dtypes, as the `run` table stores it; None means the dtypes of the
            mode.
        memory: How much memory the recording may use.
        keeps_ops: Whether TensorFlow's optimizer leaves the ops of graphs unchanged, so that each op has its rows.
        remote: Where to upload the parts of `logdir`; None means no upload. With an upload, `logdir` holds only this
            run.
        retention: Which events a circular buffer keeps; None means that all are kept.
    """

    logdir: Path
    mode: TensorDebugMode
    circular_buffer_size: int
    op_regex: re.Pattern[str] | None
    dtypes: frozenset[str]
    tensor_dtypes_text: str | None
    health_backend: str
    memory: MemoryShares
    when_full: str
    values: ChosenValues | None
    steps: Schedule | None
    max_bytes: int | None
    dump_on: str | None
    retention: Retention | None
    xla: str
    keeps_ops: bool
    remote: RemoteSettings | None
    on_nonfinite: str | Callable[[Any], object]
    redact: frozenset[str]
    histograms: bool
    exact_subnormals: bool
    run_name: str | None
    tags: tuple[str, ...]
    notes: str | None

    @property
    def stops_or_calls(self) -> bool:
        """Whether a bad value stops the program or calls the user's callable."""
        return self.on_nonfinite not in ("record", "keep")

    @property
    def keeps_inputs(self) -> bool:
        """Whether the inputs of ops that make a bad value are kept."""
        return self.on_nonfinite == "keep"

    @property
    def shown_logdir(self) -> str:
        """The directory or URL of the recording, in a form that is safe to show."""
        return str(self.logdir if self.remote is None else self.remote.directory)

    @property
    def dtype_mask(self) -> int:
        """Bit i is set if tensors of TensorFlow's DataType i are recorded."""
        return sum(1 << DTYPES_BY_NAME[name].number for name in self.dtypes)

    @property
    def has_op_filter(self) -> bool:
        """True if some ops are recorded differently from others."""
        return self.op_regex is not None or self.values is not None

    @property
    def keeps_values(self) -> bool:
        """True if elements of tensors are kept."""
        return self.mode is TensorDebugMode.FULL_TENSOR or self.values is not None

    def recorded(self) -> dict[str, Any]:
        """Returns the settings in the column `settings` of the `run` table. Other settings have a column each."""
        return {
            "requested_health_backend": self.health_backend,
            "max_memory_bytes": self.memory.max_memory_bytes,
            "when_full": self.when_full,
            "dtypes": sorted(self.dtypes),
            "graphs": "traced" if self.keeps_ops else "executed",
            "values": None if self.values is None else self.values.text,
            "steps": None if self.steps is None else str(self.steps),
            "max_bytes": self.max_bytes,
            "dump_on": self.dump_on,
            "dump_after": None if self.retention is None else self.retention.num_after,
            "on_nonfinite": self.on_nonfinite if isinstance(self.on_nonfinite, str) else "callable",
            "redact": sorted(self.redact) or None,
            "histograms": self.histograms,
            "exact_subnormals": self.exact_subnormals,
        }

    def covers_op(self, op_type: str) -> bool:
        """Returns True if tensors of ops of this type are recorded."""
        return self.op_regex is None or self.op_regex.match(op_type) is not None

    def reason_not_recorded(self, op_type: str, dtype_number: int, *, is_chosen: bool = False) -> str | None:
        """Returns the `not_recorded_reason` of graph_op_output for a tensor; None if the tensor is recorded.

        Args:
            op_type: The type of the tensor's op.
            dtype_number: The tensor's dtype, as TensorFlow's DataType.
            is_chosen: Whether `values` chose the op; other filters then do not exclude it.
        """
        if self.mode is TensorDebugMode.NO_TENSOR:
            return "mode"
        name = dtype_name(dtype_number)
        if is_chosen and name in _KEEPABLE:
            return None
        if name not in self.dtypes:
            is_filtered = self.tensor_dtypes_text is not None and name in self.mode.recordable
            return "tensor_dtypes" if is_filtered else "dtype"
        return None if self.covers_op(op_type) else "op_regex"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The user's settings before they are checked, and their defaults.

    Request declares the settings. The arguments of enable() and the options of `tfdbg-arrow run` must agree with this
    class (tests/writer/test_settings.py). enable() documents the settings.
    """

    logdir: str | os.PathLike[str]
    tensor_debug_mode: str = "FULL_HEALTH"
    circular_buffer_size: int = -1
    op_regex: str | None = None
    tensor_dtypes: Collection[Any] | Callable[[Any], bool] | None = None
    health_backend: str = "auto"
    max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES
    when_full: str = "wait"
    xla: str = "auto"
    graphs: str = "auto"
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    local_dir: str | os.PathLike[str] | None = None
    upload_timeout_s: float = DEFAULT_UPLOAD_TIMEOUT_S
    max_local_bytes: int = DEFAULT_MAX_LOCAL_BYTES
    values: str | re.Pattern[str] | Choice | None = None
    steps: object = None
    max_bytes: int | None = None
    dump_on: str | None = None
    dump_after: int | None = None
    on_nonfinite: str | Callable[[Any], object] = "record"
    redact: str | Collection[str] | None = None
    histograms: bool = False
    exact_subnormals: bool = False
    run_name: str | None = None
    tags: Collection[str] | Mapping[str, object] | None = None
    notes: str | None = None

    def check(self, as_dtype: Callable[[Any], Any] | None = None) -> Settings:
        """Checks the request and returns the settings; creates the logdir unless it is remote.

        Args:
            as_dtype: `tf.as_dtype`. Without `as_dtype`, dtypes can only be given by name.

        Raises:
            SettingError: A value is not valid.
            LogdirError: The logdir cannot be written, or the path is not a directory.
            MissingDependencyError: The logdir is a URL, and the package that opens it is not installed.
        """
        if self.tensor_debug_mode not in TensorDebugMode.__members__:
            modes = ", ".join(sorted(TensorDebugMode.__members__))
            raise SettingError(f"tensor_debug_mode is {self.tensor_debug_mode!r}; expected one of {modes}")
        if not is_integer(self.circular_buffer_size):
            raise SettingError(
                f"circular_buffer_size is {self.circular_buffer_size!r}; expected an integer, -1 for all events"
            )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise SettingError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(choices)}")
        if self.xla == "inside" and (self.values is not None or self.tensor_debug_mode == "FULL_TENSOR"):
            raise SettingError("xla is 'inside', which cannot keep elements of tensors; choose xla='observe'")
        if not isinstance(self.exact_subnormals, bool):
            raise SettingError(f"exact_subnormals is {self.exact_subnormals!r}; expected True or False")
        if self.xla == "inside" and self.histograms:
            raise SettingError("xla is 'inside', which cannot count histograms; choose xla='observe'")
        if not is_integer(self.max_memory_bytes) or not MIN_MEMORY_BYTES <= self.max_memory_bytes <= MAX_MEMORY_BYTES:
            raise SettingError(
                f"max_memory_bytes is {self.max_memory_bytes!r}; expected a number from {MIN_MEMORY_BYTES} (192 MiB) "
                f"to {MAX_MEMORY_BYTES} (16 GiB)"
            )
        try:
            pattern = re.compile(self.op_regex) if self.op_regex else None
        except (re.error, TypeError) as error:
            raise SettingError(f"op_regex is {self.op_regex!r}, no regular expression: {error}") from error
        mode = TensorDebugMode[self.tensor_debug_mode]
        dtypes, text = _choose_dtypes(self.tensor_dtypes, mode, as_dtype or _named_dtype)
        location = parse_location(self.logdir)
        remote = check_remote(
            location,
            storage_options=self.storage_options,
            local_dir=self.local_dir,
            upload_timeout_s=self.upload_timeout_s,
            max_local_bytes=self.max_local_bytes,
        )
        steps = None if self.steps is None else parse_schedule(self.steps)
        values = None if self.values is None else parse_values(self.values)
        if values is not None and mode in (TensorDebugMode.NO_TENSOR, TensorDebugMode.FULL_TENSOR):
            kept = "no tensor" if mode is TensorDebugMode.NO_TENSOR else "every tensor"
            raise SettingError(
                f"values is {values.text!r}, but the mode {mode.name} keeps {kept}; leave it out or choose another mode"
            )
        if self.max_bytes is not None and (not is_integer(self.max_bytes) or self.max_bytes < MIN_BUDGET_BYTES):
            raise SettingError(
                f"max_bytes is {self.max_bytes!r}; expected at least {MIN_BUDGET_BYTES} (1 MiB), or None for no limit"
            )
        retention = self._check_retention(mode)
        if self.on_nonfinite == "keep" and self.circular_buffer_size > 0:
            raise SettingError(
                f"on_nonfinite is 'keep' and circular_buffer_size is {self.circular_buffer_size}, but a buffer drops "
                "tensors whose inputs are kept; use max_bytes to limit the disk space"
            )
        return Settings(
            logdir=_check_logdir(location) if isinstance(location, Path) else local_logdir(self.local_dir),
            remote=remote,
            mode=mode,
            circular_buffer_size=self.circular_buffer_size,
            op_regex=pattern,
            dtypes=dtypes,
            tensor_dtypes_text=text,
            health_backend=self.health_backend,
            memory=MemoryShares(self.max_memory_bytes),
            when_full=self.when_full,
            xla=self.xla,
            keeps_ops=self._keeps_ops(),
            values=values,
            steps=steps,
            max_bytes=self.max_bytes,
            dump_on=self.dump_on,
            retention=retention,
            on_nonfinite=_check_on_nonfinite(self.on_nonfinite, mode),
            redact=parse_redact(self.redact),
            histograms=_check_histograms(self.histograms, mode),
            exact_subnormals=self.exact_subnormals,
            run_name=_check_name(self.run_name),
            tags=_check_tags(self.tags),
            notes=_check_text("notes", self.notes, max_length=MAX_NOTES, is_line=False),
        )

    def _keeps_ops(self) -> bool:
        """Returns True if TensorFlow's optimizer leaves the program's ops unchanged."""
        if self.graphs != "auto":
            return self.graphs == "traced"
        # The optimizer may remove an op that the user chose by its name or type.
        return self.op_regex is not None or self.values is not None

    def _check_retention(self, mode: TensorDebugMode) -> Retention | None:
        """Returns which events a circular buffer keeps; None without a circular buffer."""
        if self.dump_on not in (None, "nonfinite"):
            raise SettingError(f"dump_on is {self.dump_on!r}; expected 'nonfinite', or None to keep the last events")
        if self.circular_buffer_size < 1:
            for name, value in (("dump_on", self.dump_on), ("dump_after", self.dump_after)):
                if value is not None:
                    raise SettingError(
                        f"{name} is {value!r} with circular_buffer_size {self.circular_buffer_size}; expected at least "
                        "1, the number of executions and graph tensors to hold in memory"
                    )
            return None
        if self.dump_on is not None and not mode.measures_health:
            raise SettingError(
                f"dump_on is {self.dump_on!r}, but the mode {mode.name} does not look for infinities and NaN; choose "
                "CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, FULL_NUMERICS or FULL_TENSOR"
            )
        num_after = self.circular_buffer_size if self.dump_after is None else self.dump_after
        if not is_integer(num_after) or num_after < 0:
            raise SettingError(f"dump_after is {num_after!r}; expected a number of events, 0 or more")
        return Retention(size=self.circular_buffer_size, num_after=num_after, only_bad=self.dump_on is not None)


def _check_name(value: Any) -> str | None:
    name = _check_text("run_name", value, max_length=MAX_NAME, is_line=True)
    if name == "all":
        raise SettingError("run_name is 'all', which selects all runs in --run; choose another name")
    return name


def _check_tags(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, (Collection, Mapping)):
        raise SettingError(
            f"tags is {value!r}; expected strings, such as ['baseline'], or a mapping, such as {{'lr': 0.1}}"
        )
    tags = [f"{key}={item}" for key, item in value.items()] if isinstance(value, Mapping) else [*value]
    if len(tags) > MAX_TAGS:
        raise SettingError(f"tags has {len(tags)} tags; expected at most {MAX_TAGS}")
    checked = (_check_text("a tag", tag, max_length=MAX_NAME, is_line=True) for tag in tags)
    return tuple(tag for tag in checked if tag is not None)


def _check_text(name: str, value: Any, *, max_length: int, is_line: bool) -> str | None:
    """Checks a text of the user; `is_line` forbids characters that cannot be printed, such as line breaks."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise SettingError(f"{name} is {value!r}; expected a text that is not empty")
    if len(value) > max_length:
        raise SettingError(f"{name} has {len(value):,} characters; expected at most {max_length:,}")
    if is_line and printable(value) != value:
        raise SettingError(f"{name} is {value!r}, which has control characters; expected one line of text")
    return as_utf8(value)


def _check_on_nonfinite(value: Any, mode: TensorDebugMode) -> str | Callable[[Any], object]:
    if not callable(value) and value not in ("record", "keep", "raise"):
        raise SettingError(f"on_nonfinite is {value!r}; expected 'record', 'keep', 'raise' or a callable")
    if value != "record" and mode in (TensorDebugMode.NO_TENSOR, TensorDebugMode.SHAPE):
        raise SettingError(
            f"on_nonfinite is {value!r}, but mode {mode.name} does not look for bad values; use CURT_HEALTH, "
            "CONCISE_HEALTH, FULL_HEALTH, FULL_NUMERICS or FULL_TENSOR"
        )
    chosen: str | Callable[[Any], object] = value
    return chosen


def _check_histograms(value: Any, mode: TensorDebugMode) -> bool:
    if not isinstance(value, bool):
        raise SettingError(f"histograms is {value!r}; expected True or False")
    if value and not mode.counts_signs:
        raise SettingError(
            f"histograms is True, but mode {mode.name} does not count finite elements; use FULL_HEALTH, FULL_NUMERICS "
            "or FULL_TENSOR"
        )
    return value


def _named_dtype(name: object) -> Any:
    """Returns a stand-in for tf.as_dtype(name) with the attributes that the settings use."""
    if name not in DTYPES_BY_NAME:
        raise TypeError(f"{name!r} is not a TensorFlow dtype")
    return SimpleNamespace(name=name, base_dtype=SimpleNamespace(name=name))


def _choose_dtypes(
    tensor_dtypes: Collection[Any] | Callable[[Any], bool] | None,
    mode: TensorDebugMode,
    as_dtype: Callable[[Any], Any],
) -> tuple[frozenset[str], str | None]:
    if tensor_dtypes is None or mode is TensorDebugMode.NO_TENSOR:
        return mode.dtypes, None
    if callable(tensor_dtypes):
        chosen = set()
        for name in mode.recordable:
            try:
                dtype = as_dtype(name)
            except TypeError:  # an older TensorFlow does not have this float8 type
                continue
            try:
                is_chosen = bool(tensor_dtypes(dtype))
            except Exception as error:
                raise SettingError(
                    f"tensor_dtypes is the callable {_name_of(tensor_dtypes)}, which raised {type(error).__name__} for "
                    f"{name}: {error}; expected one that takes a dtype and returns True or False"
                ) from error
            if is_chosen:
                chosen.add(name)
        return frozenset(chosen), _name_of(tensor_dtypes)
    try:
        names = sorted({as_dtype(item).base_dtype.name for item in tensor_dtypes})
    except TypeError as error:
        raise SettingError(
            f"tensor_dtypes is {tensor_dtypes!r}; expected None, a list of dtypes or their names, or a callable "
            f"that takes a dtype: {error}"
        ) from error
    unknown = [name for name in names if name not in mode.recordable]
    if unknown:
        raise SettingError(
            f"tensor_dtypes has {', '.join(unknown)}; mode {mode.name} can record only "
            f"{', '.join(sorted(mode.recordable))}"
        )
    return frozenset(names), "[" + ",".join(f'"{name}"' for name in names) + "]"


def _name_of(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _check_logdir(path: Path) -> Path:
    """Creates the directory of a logdir, and checks that the directory is writable and has no other format."""
    try:
        path = path.expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise LogdirError(f"the logdir {path} is a file; expected a directory, or a path where one can be created")
        path.mkdir(parents=True, exist_ok=True)
        marker = path / MARKER_NAME
        if marker.exists():
            parse_marker(marker.read_text("utf-8"), path=marker)
        with tempfile.TemporaryFile(dir=path):  # a unique name, because several processes may do this at once
            pass
    except OSError as error:
        reason = error.strerror or error
        raise LogdirError(f"the logdir {path} cannot be written: {reason}; choose another path") from error
    return path
