"""The source code: the files of a run, and one of them with the lines lit on which ops were made and ran."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.run_settings import withholds_source
from tfdbg_arrow.query.source_use import LineUse, SourceFile, line_uses, source_files, source_text
from tfdbg_arrow.viewer.failures import NoSuchPageError
from tfdbg_arrow.viewer.page import PageKind, needed_run
from tfdbg_arrow.viewer.parameters import Parameters

MAX_LINES = 20_000


@dataclass(frozen=True, kw_only=True)
class SourceTextLine:
    """One line of a file: its number from 1, its text, and what the run did there; None for nothing."""

    lineno: int
    text: str
    use: LineUse | None


@dataclass(frozen=True, kw_only=True)
class SourcePage:
    """The source code.

    Attributes:
        run_id: The run.
        file_path: The file that is shown; None where the run knows none.
        lineno: The line that is meant; None: none.
        has_text: Whether the run kept the file's text.
        is_withheld: Whether it was told to keep none (`redact`).
        lines: Its lines; without the text those on which the run did something, with an empty text.
        num_lines: How many lines it has; more than are shown in a very long file.
        files: All files of the run, those with something bad first.
    """

    run_id: str
    file_path: str | None
    lineno: int | None
    has_text: bool
    is_withheld: bool
    lines: tuple[SourceTextLine, ...]
    num_lines: int
    files: tuple[SourceFile, ...]


def read_source(logdir: Logdir, *, run_id: str, file_path: str | None = None, lineno: int | None = None) -> SourcePage:
    """Returns a file of a run, from the text that the run kept; no file is opened by its name.

    Args:
        logdir: The logdir.
        run_id: The run.
        file_path: The file as the run names it; None: the first one, with something bad where there is one.
        lineno: The line that is meant.

    Raises:
        NoSuchPageError: The run knows no such file.
    """
    files = source_files(logdir, run_id=run_id)
    if file_path is None:
        file_path = files[0].file_path if files else None
    elif file_path not in [file.file_path for file in files]:
        raise NoSuchPageError(f"run {run_id} knows no file {file_path!r}.")
    uses = {use.lineno: use for use in line_uses(logdir, file_path, run_id=run_id)} if file_path is not None else {}
    texts = None if file_path is None else source_text(logdir, file_path, run_id=run_id)
    if texts is None:
        lines = tuple(SourceTextLine(lineno=use.lineno, text="", use=use) for use in uses.values())
    else:
        # Of a file that is longer than a browser shows well, the part around the line that is meant.
        start = 0 if len(texts) <= MAX_LINES else max(0, (lineno or 1) - MAX_LINES // 2)
        lines = tuple(
            SourceTextLine(lineno=number, text=text, use=uses.get(number))
            for number, text in enumerate(texts[start : start + MAX_LINES], start=start + 1)
        )
    return SourcePage(
        run_id=run_id,
        file_path=file_path,
        lineno=lineno,
        has_text=texts is not None,
        is_withheld=texts is None and withholds_source(logdir, run_id=run_id),
        lines=lines,
        num_lines=len(texts or ()),
        files=files,
    )


def _read(logdir: Logdir, parameters: Parameters) -> SourcePage:
    return read_source(
        logdir,
        run_id=needed_run(logdir, parameters),
        file_path=parameters.text("file"),
        lineno=parameters.integer("line"),
    )


PAGE = PageKind(name="source", title="Source", key="s", read=_read)
