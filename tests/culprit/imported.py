"""Compares first_nonfinite on imported dumps of Debugger V2 with TensorFlow's monitor, on the programs of the corpus.

`python -m tests.culprit.imported` records all programs with Debugger V2 in FULL_HEALTH. Names on the command line limit
the programs. The command prints the programs for which the monitor is right and first_nonfinite is wrong, and then the
counts. The monitor reports any bad value, so its first alert counts as its answer.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The module `record` sets the environment variables that TensorFlow reads at its import.
from tests.culprit.record import run, use_two_devices  # isort: skip

import tensorflow as tf
from tensorflow.python.debug.lib.debug_events_monitors import InfNanMonitor
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

import tfdbg_arrow
from tests.culprit.corpus import Program, is_named, sampled
from tfdbg_arrow.debugger_v2.importer import import_dump

NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The op types that first_nonfinite and the monitor name first, or `nothing`.

    Attributes:
        program: The program.
        wanted: The declared type. None if the bad value is an argument of the program.
        ours: The type that first_nonfinite names, or `nothing` if the value did no harm.
        monitor: The type in the monitor's first alert.
    """

    program: Program
    wanted: str | None
    ours: str | None
    monitor: str | None

    @property
    def is_worse(self) -> bool:
        """Whether only the monitor is right."""
        return self.monitor == self.wanted != self.ours


def compare(program: Program) -> Compared:
    """Records a program with Debugger V2, and asks first_nonfinite and the monitor."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "scratch").mkdir()
        run(program, recorded(directory / "dump"), scratch=directory / "scratch")
        import_dump(directory / "dump", directory / "logdir")
        first = tfdbg_arrow.first_nonfinite(directory / "logdir")
        with DebugDataReader(str(directory / "dump")) as reader:
            monitor = InfNanMonitor(reader)
            reader.update()
            alerts = monitor.alerts()
    return Compared(
        program=program,
        wanted=NOTHING if program.culprit is None else program.culprit.op_type,
        ours=NOTHING if first is None or first.is_expected else first.op_type,
        monitor=alerts[0].op_type if alerts else NOTHING,
    )


@contextlib.contextmanager
def recorded(dump: Path) -> Iterator[None]:
    """Records the code inside the `with` block with Debugger V2."""
    writer = tf.debugging.experimental.enable_dump_debug_info(str(dump), "FULL_HEALTH", circular_buffer_size=-1)
    try:
        yield
    finally:
        writer.FlushNonExecutionFiles()
        writer.FlushExecutionFiles()
        tf.debugging.experimental.disable_dump_debug_info()


def counts(compared: list[Compared]) -> dict[str, int]:
    """Counts bugs and other programs.

    For each of the two tools, counts rightly named bugs and reported other programs.
    """
    bugs = [each for each in compared if each.program.culprit is not None]
    others = [each for each in compared if each.program.culprit is None]
    return {
        "bugs": len(bugs),
        "bugs_named_by_us": sum(each.ours == each.wanted for each in bugs),
        "bugs_named_by_monitor": sum(each.monitor == each.wanted for each in bugs),
        "others": len(others),
        "others_reported_by_us": sum(each.ours != NOTHING for each in others),
        "others_reported_by_monitor": sum(each.monitor != NOTHING for each in others),
        "worse": sum(each.is_worse for each in compared),
    }


def main() -> None:
    """Prints the programs for which only the monitor is right, and the counts as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs or modules; default: all")
    parser.add_argument("--every", type=int, default=1, help="only about one of so many programs")
    options = parser.parse_args()
    use_two_devices()
    compared = []
    for program in sampled(options.every):
        if not is_named(program, options.names):
            continue
        compared.append(compare(program))
        if compared[-1].is_worse:
            print(f"{program.name}: {compared[-1].wanted}, not {compared[-1].ours}", flush=True)
    print(counts(compared))


if __name__ == "__main__":
    main()
