"""`tfdbg-arrow run`: records an unmodified program."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import EXIT_BUG, EXIT_ERROR, NO_BUGS, Command, error_object, tell_bug
from tfdbg_arrow.cli.output import print_blocks, print_json, progress
from tfdbg_arrow.errors import SettingError, TfdbgArrowError, TimeLimitError
from tfdbg_arrow.safe_text import number_of, printable

if TYPE_CHECKING:
    from tfdbg_arrow.query import AboutRuns, Logdir, NonFinite, Reasons, Run
    from tfdbg_arrow.writer.program import Program

_EXIT_FINDINGS = 1
"""Exit code if a bad value did harm, as in other commands."""
_EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""
_SUMMARY_S = 10.0
"""Time limit of the queries for the closing summary. The program's process waits for these queries. The first bad value
is searched for only in a run with bad values. On a busy machine, the search takes seconds even for a small run. Without
the search, the exit code may be wrong."""


class RunCommand(Command):
    """A command whose own options end at the script's path, or after `-m` and the module's name.

    The program owns stdout. Therefore the JSON object of an error is the last line of stderr, like the summary.
    """

    def print_error_json(self, type_: str, message: str, **more: object) -> None:
        """Prints an error as a JSON object."""
        print_json(error_object(type_, message, **more), indent=None, err=True)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses our own options. Everything after the program's name is passed to the program."""
        flags = {name for option in self.get_params(ctx) for name in option.opts if getattr(option, "is_flag", False)}
        return super().parse_args(ctx, _with_end_of_options(args, flags))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Returns the pieces of the usage line."""
        return ["[OPTIONS]", "{SCRIPT | -m MODULE}", "[ARGS]..."]


def _with_end_of_options(args: list[str], flags: set[str]) -> list[str]:
    index = 0
    while index < len(args) and args[index].startswith("-") and args[index] != "--":
        name = args[index]
        has_value = name in flags or "=" in name or (len(name) > 2 and not name.startswith("--"))
        index += 1 if has_value else 2
        if name.startswith("-m"):
            return [*args[:index], "--", *args[index:]]
    return args


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """The closing summary of `run`; `--json` prints it as one object.

    Attributes:
        logdir: The logdir, as an absolute path, or its URL.
        run_ids: The recorded runs; empty if nothing was recorded.
        program_exit_code: The program's own exit code.
        num_tensors: Number of recorded tensors of these runs.
        num_nonfinite: Number of these tensors with an infinity or a NaN.
        nonfinite: The first bad tensor, in the form of `first-nonfinite --json`; None if there is none.
        reasons: Why that tensor is bad, in the same form; None if there is no bad tensor.
        unobserved: One line about the tensors of these runs that were not examined; None if there are none.
        stopped_by: The bad tensor that stopped the program under `--on-nonfinite raise`, in the form of `nonfinite`;
            None if nothing stopped it.
        about: What the other runs of the logdir hold; None if nothing was recorded.
        has_nan_variable: Whether an op wrote a NaN to a variable.
        is_searched: Whether the search for the first bad tensor was completed.
        is_finished: Whether the summary was completed in time. If not, attributes that were not computed have their
            default values.
    """

    logdir: str
    run_ids: tuple[str, ...]
    program_exit_code: int
    num_tensors: int = 0
    num_nonfinite: int = 0
    nonfinite: NonFinite | None = None
    reasons: Reasons | None = None
    unobserved: str | None = None
    stopped_by: NonFinite | None = None
    about: AboutRuns | None = None
    has_nan_variable: bool = False
    is_searched: bool = False
    is_finished: bool = True


@click.command("run", cls=RunCommand, context_settings={"allow_interspersed_args": False})
@click.pass_context
@click.argument(
    "program", metavar="SCRIPT", nargs=-1, help="The script and its arguments, as you would pass them to `python`."
)
@click.option("-m", "module", metavar="MODULE", help="The module to run instead of a script, as with `python -m`.")
@click.option(
    "--logdir",
    "-o",
    metavar="DIR",
    default="tfdbg_logdir",
    help="Where to write: a directory, or a URL such as s3://bucket/path.",
)
@click.option(
    "--mode",
    metavar="MODE",
    default="FULL_HEALTH",
    help="How much of each tensor to record: NO_TENSOR, CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, "
    "FULL_NUMERICS, SHAPE or FULL_TENSOR.",
)
@click.option(
    "--circular-buffer-size",
    metavar="N",
    type=int,
    default=-1,
    help="Keep only the last N executions and graph tensors, and those around bad values; 0 keeps all.",
)
@click.option("--op-regex", metavar="REGEX", help="Record only ops whose type matches, from its start.")
@click.option("--tensor-dtypes", metavar="A,B,...", help="Record only tensors of these dtypes, e.g. float32,bfloat16.")
@click.option(
    "--health-backend",
    metavar="NAME",
    default="auto",
    help="What counts elements: native (the core), tensorflow (on the tensor's device) or auto (tensorflow "
    "if there is a GPU).",
)
@click.option(
    "--xla",
    metavar="CHOICE",
    default="auto",
    help="Functions with jit_compile=True: inside (compiled, recorded), observe (without XLA, recorded), keep "
    "(compiled, not recorded) or auto (inside, but observe with a GPU, if elements are kept, and with "
    "--histograms).",
)
@click.option(
    "--graphs",
    metavar="CHOICE",
    default="auto",
    help="Functions: executed (the ops that TensorFlow's optimizer makes of yours), traced (your ops, because "
    "TensorFlow does not fuse or fold them), or auto (executed, but traced with --op-regex and --values).",
)
@click.option(
    "--values", metavar="REGEX", help="Record all elements of ops whose name or type matches, from its start."
)
@click.option(
    "--steps",
    metavar="STEPS",
    help="Record only these training steps, as the program marks them, e.g. '0:100,1000:,::10' or '3,5'.",
)
@click.option(
    "--max-bytes",
    metavar="BYTES",
    type=int,
    help="Limit the events on disk to this size; events of the middle are dropped.",
)
@click.option(
    "--when-full",
    metavar="WHAT",
    default="wait",
    help="If events arrive faster than they can be written: `wait` (the program waits) or `drop` them.",
)
@click.option(
    "--max-memory-bytes",
    metavar="BYTES",
    type=int,
    help="Memory limit of the recording, however fast events arrive. Default: 256 MiB.",
)
@click.option(
    "--dump-on", metavar="nonfinite", help="Keep only what is around an infinity or a NaN, and not the last ones."
)
@click.option(
    "--dump-after",
    metavar="M",
    type=int,
    help="With a circular buffer, the number of events to keep after a bad value.",
)
@click.option(
    "--on-nonfinite",
    metavar="WHAT",
    default="record",
    help="At a NaN or an infinity: `record` it, `keep` also the inputs of the op, or `raise`, which stops the "
    "program there.",
)
@click.option(
    "--redact",
    metavar="WHAT",
    help="Leave out of the logdir: paths (also host and command line), source, or paths,source.",
)
@click.option(
    "--histograms", is_flag=True, help="Count the elements of floating-point tensors by sign and power of two."
)
@click.option("--exact-subnormals", is_flag=True, help="On a GPU, do not count subnormal numbers as zeros.")
@click.option("--run-name", metavar="NAME", help="A name for the run, which --run of other commands accepts.")
@click.option("--tags", metavar="A,B,...", help="Tags that describe the run, e.g. baseline,lr=0.1.")
@click.option("--notes", metavar="NOTES", help="Notes about the run.")
@click.option(
    "--seed",
    metavar="N",
    type=int,
    help="Seed Python, NumPy and TensorFlow with this number before the program starts.",
)
@click.option("--json", is_flag=True, help="Print the summary as a JSON object on the last line of stderr.")
def run(
    ctx: click.Context,
    /,
    program: tuple[str, ...],
    module: str | None,
    logdir: str,
    mode: str,
    tensor_dtypes: str | None,
    max_memory_bytes: int | None,
    tags: str | None,
    seed: int | None,
    json: bool,
    **settings: Any,
) -> None:
    """Runs an unmodified Python program and records it.

    Everything after the script or module belongs to the program. The program's output is not changed; a summary is
    printed on stderr after the program has ended. If the program calls
    tf.debugging.experimental.enable_dump_debug_info, it is recorded with the settings of that call, instead of
    TensorFlow's own dump.

    Exit codes: the program's own if it fails (1 for an exception). Otherwise 0 no bad values, or only values that did
    no harm (see first-nonfinite), 1 a bad value was found, 2 an error, 3 a bug of tfdbg-arrow. The search stops after
    10 seconds. If it has found nothing by then, the exit code is 1 if a NaN was written to a variable, else 0.
    """
    import tfdbg_arrow.stop  # noqa: F401  (registers the look-up of origins for --on-nonfinite raise)
    from tfdbg_arrow.storage.location import parse_location
    from tfdbg_arrow.writer.launch import record_program
    from tfdbg_arrow.writer.memory import DEFAULT_MAX_MEMORY_BYTES
    from tfdbg_arrow.writer.settings import Request

    location = parse_location(logdir)
    request = Request(
        logdir=location.expanduser().absolute() if isinstance(location, Path) else location.url,
        tensor_debug_mode=mode,
        tensor_dtypes=None if tensor_dtypes is None else [name.strip() for name in tensor_dtypes.split(",")],
        tags=None if tags is None else [tag.strip() for tag in tags.split(",")],
        max_memory_bytes=DEFAULT_MAX_MEMORY_BYTES if max_memory_bytes is None else max_memory_bytes,
        **settings,
    )
    try:
        outcome = record_program(_program(module, program), request, seed=seed)
        if outcome.is_child:
            raise Exit(outcome.exit_code)
        summary = Summary(
            logdir=os.fspath(request.logdir),
            run_ids=outcome.run_ids,
            program_exit_code=outcome.exit_code,
            stopped_by=None if outcome.stop is None else outcome.stop.nonfinite,
        )
        try:
            exit_code = _finish(summary, shown_logdir=logdir, json=json)
        except NO_BUGS:
            raise
        except Exception as error:
            text = tell_bug(ctx, error)
            if json:
                print_json(error_object(type(error).__name__, text), indent=None, err=True)
            exit_code = outcome.exit_code or EXIT_BUG
        raise Exit(exit_code)
    except KeyboardInterrupt:
        raise Exit(_EXIT_INTERRUPTED) from None


def _program(module: str | None, args: tuple[str, ...]) -> Program:
    from tfdbg_arrow.writer.program import Program

    if module is not None:
        return Program(name=module, is_module=True, args=args)
    if not args:
        raise SettingError("run was given no program; expected the path of a script, or -m and the name of a module")
    return Program(name=args[0], args=args[1:])


def _finish(summary: Summary, *, shown_logdir: str, json: bool) -> int:
    """Prints the summary and returns the exit code."""
    with contextlib.suppress(OSError, AttributeError):
        sys.stdout.flush()
    try:
        summary, runs = _read(summary)
    except TfdbgArrowError as error:
        _say(str(error))
        if json:
            print_json(error_object(type(error).__name__, str(error)), indent=None, err=True)
        return summary.program_exit_code or EXIT_ERROR
    if json:
        print_json(summary, indent=None, err=True)
    else:
        if summary.stopped_by is not None:
            _print_stop(summary.logdir, summary.stopped_by)
        for line in _summary_lines(summary, runs, shown_logdir):
            _say(line)
    return summary.program_exit_code or _own_exit_code(summary)


def _own_exit_code(summary: Summary) -> int:
    # If the search was cut off and no other sign of harm exists, the exit code is that of an unrecorded program.
    is_finding = summary.nonfinite is not None and not summary.nonfinite.is_expected
    return _EXIT_FINDINGS if is_finding or summary.has_nan_variable else 0


def _read(summary: Summary) -> tuple[Summary, list[Run]]:
    """Returns the summary, completed from the logdir, and its runs."""
    if not summary.run_ids:
        return summary, []
    from tfdbg_arrow.query import open_logdir

    runs: list[Run] = []
    with progress("Looking for the first bad tensor …"), open_logdir(summary.logdir) as opened:
        try:
            with opened.within(_SUMMARY_S):
                runs = [run for run in opened.runs() if run.run_id in summary.run_ids]
                for facts in _facts(opened, runs):
                    summary = dataclasses.replace(summary, **facts)
        except TimeLimitError:
            summary = dataclasses.replace(summary, is_finished=False)
    return summary, runs


def _facts(logdir: Logdir, runs: list[Run]) -> Iterator[dict[str, Any]]:
    """Yields attributes of the summary, the cheapest queries first."""
    from tfdbg_arrow.query.asked_runs import about_runs

    run_ids = [run.run_id for run in runs]
    yield {"about": about_runs(logdir, run_ids=run_ids, reads_others=False)}
    ((num_tensors, num_nonfinite),) = logdir.rows(
        "SELECT count(*), count(*) FILTER (has_inf_or_nan) FROM tensor_health WHERE list_contains($runs, run_id)",
        {"runs": run_ids},
    )
    yield {"num_tensors": num_tensors, "num_nonfinite": num_nonfinite, "is_searched": num_nonfinite == 0}
    if num_nonfinite:  # without a bad tensor, the search would read data for nothing
        from tfdbg_arrow.query import read_reasons
        from tfdbg_arrow.query.nonfinite_search import has_nan_variable, most_harmful

        yield {"has_nan_variable": any(has_nan_variable(logdir, run_id=run_id) for run_id in run_ids)}
        of_runs = (logdir.first_nonfinite(run_id=run_id) for run_id in run_ids)
        first = most_harmful(tensor for tensor in of_runs if tensor is not None)
        reasons = None if first is None else read_reasons(logdir, first)
        yield {"nonfinite": first, "reasons": reasons, "is_searched": True}
    unobserved = [logdir.coverage(run_id=run.run_id).summary_beside_gaps for run in runs if run.measures_health]
    yield {"unobserved": "; ".join(text for text in unobserved if text is not None) or None}
    yield {"about": about_runs(logdir, run_ids=run_ids)}


def _print_stop(logdir: str, first: NonFinite) -> None:
    """Prints the tensor that stopped the program on stderr, in the format of `first-nonfinite`."""
    from tfdbg_arrow.query import open_logdir, read_reasons, source_lines
    from tfdbg_arrow.query.present.tensors import nonfinite

    _say("the program was stopped by")
    with open_logdir(logdir) as opened:
        lines = () if first.source is None else source_lines(opened, first.source, run_id=first.run_id)
        reasons = read_reasons(opened, first)
    print_blocks(nonfinite(first, reasons, lines), stderr=True)


def _summary_lines(summary: Summary, runs: list[Run], shown_logdir: str) -> list[str]:
    about = None if summary.about is None else summary.about.sentence
    return [*([] if about is None else [about]), *_lines_about_own_runs(summary, runs, shown_logdir)]


def _lines_about_own_runs(summary: Summary, runs: list[Run], shown_logdir: str) -> list[str]:
    if not summary.run_ids:
        is_off = os.environ.get("TFDBG_ARROW") == "0"
        why = "TFDBG_ARROW=0 is set" if is_off else "the program did not import TensorFlow"
        return [f"nothing was recorded: {why}"]
    if not summary.is_searched:
        numbers = (
            f" {number_of(summary.num_tensors, 'tensor')}, {summary.num_nonfinite:,} of them bad,"
            if summary.num_tensors
            else ""
        )
        return [
            f"recorded{numbers} in {shown_logdir}; the search for the first bad one took longer than {_SUMMARY_S:g} s",
            *(["a NaN was written to a variable"] if summary.has_nan_variable else []),
            f"to find it: tfdbg-arrow first-nonfinite {shlex.quote(shown_logdir)}",
        ]
    recorded = f"recorded {number_of(summary.num_tensors, 'tensor')} in {shown_logdir}"
    left_out = [f"the recording is incomplete: {text}" for run in runs for text in run.left_out]
    if summary.nonfinite is not None and summary.reasons is not None:
        from tfdbg_arrow.query.present.tensors import verdict
        from tfdbg_arrow.query.present.text import line_text

        has_other_runs = summary.about is not None and summary.about.num_others > 0
        chosen_run = f" --run {summary.nonfinite.run_id}" if has_other_runs else ""
        command = f"tfdbg-arrow first-nonfinite {shlex.quote(shown_logdir)}{chosen_run}"
        return [
            *map(line_text, verdict(summary.nonfinite, summary.reasons)),
            f"{recorded}, {summary.num_nonfinite:,} of them bad",
            f"for its op, inputs and stack: {command}",
            *left_out,
        ]
    more = f"for more: tfdbg-arrow info {shlex.quote(shown_logdir)}"
    unmeasured = sorted({run.tensor_debug_mode or "" for run in runs if not run.measures_health})
    if unmeasured:
        return [f"{recorded}; mode {' and '.join(unmeasured)} does not look at their elements; {more}", *left_out]
    if not summary.num_tensors:
        why = "no op that the settings select was run" if not left_out else "see below"
        return [f"no tensor was recorded in {shown_logdir}: {why}; {more}", *left_out]
    clean = [f"{recorded}, none of them bad; {more}", *left_out]
    if not summary.is_finished:
        clean.append(f"to list the tensors that were not looked at: tfdbg-arrow coverage {shlex.quote(shown_logdir)}")
    if summary.unobserved is not None:
        clean.append(f"not looked at: {summary.unobserved}; see: tfdbg-arrow coverage {shlex.quote(shown_logdir)}")
    return clean


def _say(text: str) -> None:
    click.echo(f"tfdbg-arrow: {printable(text)}", err=True)
