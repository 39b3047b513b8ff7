"""The source page: the files of a run, and one file with the lines that created or ran ops highlighted."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.info import withholds_source
from tfdbg_arrow.query.stacks import LineUse, SourceFile, line_uses, source_files, source_text
from tfdbg_arrow.viewer.page import NoSuchPageError, PageKind, Parameters, needed_run

MAX_LINES = 20_000
"""Maximum number of lines on a page. Browsers are slow with longer pages; the page says how many lines there are."""


@dataclass(frozen=True, kw_only=True)
class SourceTextLine:
    """A line of a file: its number, counted from 1; its text; and the ops that it created or ran, None for no ops."""

    lineno: int
    text: str
    use: LineUse | None


@dataclass(frozen=True, kw_only=True)
class SourceOrigin:
    """The line that created the op where the first bad value began.

    Attributes:
        file_path: The file.
        lineno: The line.
        event_index: The first bad tensor of the op.
        op_type: The op type.
        step: The training step; None if it is not known.
        is_origin: Whether the value provably began there. If not, an input of the op is not known.
    """

    file_path: str
    lineno: int
    event_index: int
    op_type: str | None
    step: int | None
    is_origin: bool


@dataclass(frozen=True, kw_only=True)
class SourcePage:
    """The data of the source page.

    Attributes:
        run_id: The run.
        file_path: The file that is shown; None if the run has no files.
        lineno: The selected line; None if no line is selected.
        has_text: Whether the run recorded the file's text.
        is_withheld: Whether the setting `redact` prevented recording the text.
        lines: The lines. If the text was not recorded, only the lines that created or ran ops, with empty texts.
        num_lines: Number of lines of the file. A very long file has more lines than are shown.
        files: All files of the run. The file of the origin comes first, then the files with bad tensors.
        origin: The line where the first harmful bad value began; None if there is no such value, or if its line is not
            known.
    """

    run_id: str
    file_path: str | None
    lineno: int | None
    has_text: bool
    is_withheld: bool
    lines: tuple[SourceTextLine, ...]
    num_lines: int
    files: tuple[SourceFile, ...]
    origin: SourceOrigin | None


def read_source(logdir: Logdir, *, run_id: str, file_path: str | None = None, lineno: int | None = None) -> SourcePage:
    """Returns a file of a run, from the recorded text. The file itself is never opened.

    Args:
        logdir: The logdir.
        run_id: The run.
        file_path: The path as recorded; None selects the first file, which is the file where the first bad value began,
            if there is one.
        lineno: The selected line.

    Raises:
        NoSuchPageError: The run has no such file.
    """
    origin = _origin(logdir, run_id=run_id)
    files = source_files(logdir, run_id=run_id)
    if origin is not None:
        files = tuple(sorted(files, key=lambda file: file.file_path != origin.file_path))
    if file_path is None:
        file_path = files[0].file_path if files else None
    elif file_path not in [file.file_path for file in files]:
        raise NoSuchPageError(f"run {run_id} has no file {file_path!r}.")
    uses = {use.lineno: use for use in line_uses(logdir, file_path, run_id=run_id)} if file_path is not None else {}
    texts = None if file_path is None else source_text(logdir, file_path, run_id=run_id)
    if texts is None:
        lines = tuple(SourceTextLine(lineno=use.lineno, text="", use=use) for use in uses.values())
    else:
        # If the file is too long for a browser, show the part around the selected line.
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
        origin=origin,
    )


def _origin(logdir: Logdir, *, run_id: str) -> SourceOrigin | None:
    bad_tensor = logdir.first_nonfinite(run_id=run_id)
    if bad_tensor is None or bad_tensor.source is None:
        return None
    return SourceOrigin(
        file_path=bad_tensor.source.file_path,
        lineno=bad_tensor.source.lineno,
        event_index=bad_tensor.event_index,
        op_type=bad_tensor.op_type,
        step=bad_tensor.step,
        is_origin=bad_tensor.is_origin,
    )


def _read(logdir: Logdir, parameters: Parameters) -> SourcePage:
    return read_source(
        logdir,
        run_id=needed_run(logdir, parameters),
        file_path=parameters.text("file"),
        lineno=parameters.integer("line"),
    )


PAGE = PageKind(name="source", title="Source", key="s", read=_read)
