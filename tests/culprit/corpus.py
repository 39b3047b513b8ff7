"""Declarations for the corpus: small programs, each with the answer that its recording must give.

A program is a function of a module in `programs/` with one of the decorators of this module. In a program with a bug,
the line that a person would change ends in the comment `# culprit`. If the bad value comes from a gradient op, the line
of the forward op has this comment.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MARKER = "# culprit"

Role = Literal["forward", "gradient"]
Effect = Literal["variable", "result", "metric", "absorbed"]


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The answer that first_nonfinite must give.

    Attributes:
        op_type: Type of the op that created the bad value. None for a tensor from outside.
        role: Whether the op belongs to the forward pass or to a gradient.
        forward: Type of the forward op that a gradient op belongs to. None for a forward op.
        effect: The end of the bad value, such as `variable`.
        lineno: The line to change in the program's file, from 1.
        executed: The expected `op_type` and `forward` with `graphs='executed'` if TensorFlow's optimizer replaces or
            removes the op. None if the op itself runs, or if the op that runs stands for this op.
        is_removed: Whether TensorFlow removes the op even with `graphs='traced'`, because no op needs its result.
        effect_in_xla: What becomes of the bad value if XLA compiles the program. XLA turns a product with a mask into
            `where(mask, x, 0)`, so a gradient that is NaN without XLA can be 0 with XLA.
    """

    op_type: str | None
    role: Role
    forward: str | None
    effect: Effect
    lineno: int
    executed: tuple[str, str | None] | None = None
    is_removed: bool = False
    effect_in_xla: Effect


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program of the corpus.

    Attributes:
        name: Module and function, such as `losses.log_of_zero`.
        function: The program itself. The function takes a directory if `prepare` is given.
        prepare: Function that writes files into this directory before the recording begins, or None.
        path: File of the program.
        culprit: The expected answer. None if no bad value may be reported.
        has_bad_values: False if no tensor of the program contains a NaN or an infinity.
        raises: The exception that ends the program, or None.
    """

    name: str
    function: Callable[..., object]
    prepare: Callable[[Path], None] | None
    path: Path
    culprit: Culprit | None
    has_bad_values: bool
    raises: type[Exception] | None


_PROGRAMS: dict[str, Program] = {}


def bug(
    *,
    op_type: str | None,
    effect: Effect,
    role: Role = "forward",
    forward: str | None = None,
    executed: tuple[str, str | None] | None = None,
    is_removed: bool = False,
    effect_in_xla: Effect | None = None,
    raises: type[Exception] | None = None,
    prepare: Callable[[Path], None] | None = None,
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Declares a program whose author would want to know about a bad value.

    Exactly one line of the program has the marker.
    """

    def declare(function: Callable[..., object]) -> Callable[..., object]:
        lineno = marked_line(function)
        culprit = Culprit(
            op_type=op_type,
            role=role,
            forward=forward,
            effect=effect,
            lineno=lineno,
            executed=executed,
            is_removed=is_removed,
            effect_in_xla=effect_in_xla or effect,
        )
        return _add(function, culprit=culprit, has_bad_values=True, raises=raises, prepare=prepare)

    return declare


def harmless(function: Callable[..., object]) -> Callable[..., object]:
    """Declares a program with intended bad values.

    The bad values must not be reported, or must be marked as expected.
    """
    return _add(function, culprit=None, has_bad_values=True)


def healthy(function: Callable[..., object]) -> Callable[..., object]:
    """Declares a program without any bad value."""
    return _add(function, culprit=None, has_bad_values=False)


def programs() -> list[Program]:
    """Returns all programs by module, in the order of their declaration. Imports TensorFlow."""
    package = importlib.import_module("tests.culprit.programs")
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{module}")
    return list(_PROGRAMS.values())


def is_named(program: Program, names: Collection[str]) -> bool:
    """Returns whether a program or its module is among some names. An empty collection stands for all programs."""
    return not names or not {program.name, program.name.partition(".")[0]}.isdisjoint(names)


def sampled(every: int) -> list[Program]:
    """Returns about one of `every` programs. The choice of a program does not depend on the other programs.

    The sample for 8 is a part of the sample for 4.
    """
    return [program for program in programs() if zlib.crc32(program.name.encode()) % every == 0]


def load_program(path: Path, function_name: str) -> Program:
    """Returns a program from a file that is not in `programs/`. The other programs of the file are not declared."""
    known = dict(_PROGRAMS)
    _PROGRAMS.clear()
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        return _PROGRAMS[f"{path.stem}.{function_name}"]
    finally:
        _PROGRAMS.clear()
        _PROGRAMS.update(known)


def _add(
    function: Callable[..., object],
    *,
    culprit: Culprit | None,
    has_bad_values: bool,
    raises: type[Exception] | None = None,
    prepare: Callable[[Path], None] | None = None,
) -> Callable[..., object]:
    name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}"
    if name in _PROGRAMS:
        raise ValueError(f"There are two programs named {name}; rename one.")
    path = Path(inspect.getfile(function)).resolve()
    _PROGRAMS[name] = Program(
        name=name,
        function=function,
        prepare=prepare,
        path=path,
        culprit=culprit,
        has_bad_values=has_bad_values,
        raises=raises,
    )
    return function


def marked_line(function: Callable[..., object]) -> int:
    """Returns the line number, from 1, of the only line of a function that has the marker."""
    lines, first = inspect.getsourcelines(function)
    marked = [first + index for index, line in enumerate(lines) if line.rstrip().endswith(MARKER)]
    if len(marked) != 1:
        raise ValueError(f"{function.__name__} has {len(marked)} lines that end in {MARKER!r}; a bug has exactly one.")
    return marked[0]
