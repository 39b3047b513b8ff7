"""Alert rules: one .sql file each, built in or the user's own.

A file begins with comments, one per line:

    -- severity: error, warning or info
    -- message: a sentence, which may contain {value} and {parameter} like a Python format string
    -- parameter: name default description       (any number of them)
    -- what one row is                           (the remaining lines)

After the comments comes one SELECT that returns the columns in COLUMNS, in SQL that both DuckDB and Spark can run. A
parameter is a number; the SQL refers to it as {name}. The name of the file is the kind of the alerts.

A built-in rule has a second file of the same name in candidates/; see Candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from tfdbg_arrow.errors import QueryError

COLUMNS = (
    "run_id",
    "graph_id",
    "op_name",
    "op_type",
    "output_slot",
    "first_event_index",
    "last_event_index",
    "num_events",
    "value",
)
"""The columns that a rule returns, in order."""
SEVERITIES = ("error", "warning", "info")
_KIND = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a rule, which is a number: the name, the default and the meaning."""

    name: str
    default: float
    doc: str


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Selects the op outputs that a built-in rule can find, by their digests. The rule need not find all of them.

    Attributes:
        select: A SELECT over `derived.op_extremes` and the tables and views, with {name} for each parameter. The SELECT
            returns run_id, graph_id, op_name, op_type and output_slot. Empty if the rule finds something in every run
            with a bad tensor, and nothing in the other runs.
        is_by_graph: Whether the rule finds whole graphs, not outputs.
    """

    select: str
    is_by_graph: bool


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        kind: The name of the rule, which is also the kind of its alerts.
        severity: `error`, `warning` or `info`.
        message: The message of an alert, a format string for `value` and the parameters.
        doc: The meaning of one row.
        parameters: The parameters of the rule.
        select: The SELECT, with {name} for each parameter.
        candidates: The op outputs that the rule can find; None if unknown.
    """

    kind: str
    severity: str
    message: str
    doc: str
    parameters: tuple[Parameter, ...]
    select: str
    candidates: Candidates | None = None

    def values(self, given: Mapping[str, float]) -> dict[str, float]:
        """Returns the values of all parameters: the given values, and the defaults of the other parameters.

        Raises:
            QueryError: A given parameter is unknown or not a finite number.
        """
        values = {parameter.name: parameter.default for parameter in self.parameters}
        for name, value in given.items():
            if name not in values:
                names = ", ".join(values) or "none"
                raise QueryError(f"the rule {self.kind} has no parameter {name!r}; it has {names}.")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
                raise QueryError(f"the parameter {name} of the rule {self.kind} is {value!r}; expected a number.")
            values[name] = float(value)
        return values

    def sql(self, given: Mapping[str, float] | None = None) -> str:
        """Returns the SELECT with the parameters' values filled in."""
        return self._filled(self.select, given)

    def candidates_sql(self, given: Mapping[str, float] | None = None) -> str:
        """Returns the SELECT of the candidates with the parameters' values filled in."""
        assert self.candidates is not None
        return self._filled(self.candidates.select, given)

    def _filled(self, text: str, given: Mapping[str, float] | None) -> str:
        for name, value in self.values(given or {}).items():
            text = text.replace("{" + name + "}", f"CAST({value!r} AS DOUBLE)")
        return text


@lru_cache(maxsize=1)
def builtin_rules() -> tuple[Rule, ...]:
    """Returns the rules of this package, by kind."""
    package = resources.files("tfdbg_arrow.query.alert_rules")
    files, candidates = package / "builtin", package / "candidates"
    rule_files = [file for file in files.iterdir() if file.name.endswith(".sql")]
    return tuple(
        replace(
            parse_rule(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"), where=file.name),
            candidates=_read_candidates(candidates / file.name),
        )
        for file in sorted(rule_files, key=lambda file: file.name)
    )


def _read_candidates(file: Traversable) -> Candidates | None:
    if not file.is_file():
        return None
    lines = file.read_text(encoding="utf-8").splitlines()
    return Candidates(
        select="\n".join(line for line in lines if not line.startswith("--")),
        is_by_graph="-- key: graph" in lines,
    )


def read_rules(directory: str | Path) -> tuple[Rule, ...]:
    """Returns the user's own rules: every .sql file of a directory, by kind.

    Raises:
        QueryError: The directory cannot be read or holds no .sql file, or a file in it is not a rule.
    """
    try:
        paths = sorted(path for path in Path(directory).iterdir() if path.suffix == ".sql")
        texts = [path.read_text(encoding="utf-8") for path in paths]
    except (OSError, UnicodeDecodeError) as error:
        raise QueryError(f"the rules in {directory} cannot be read: {error}.") from error
    if not paths:
        raise QueryError(f"{directory} contains no rules; expected files that end in .sql.")
    return tuple(parse_rule(path.stem, text, where=str(path)) for path, text in zip(paths, texts, strict=True))


def parse_rule(kind: str, text: str, *, where: str) -> Rule:
    """Parses the rule in a file.

    Args:
        kind: The rule's name.
        text: The content of the file.
        where: The file's name for error messages.

    Raises:
        QueryError: The file is not a rule; the message says why.
    """
    if _KIND.fullmatch(kind) is None:
        raise QueryError(f"the rule {where} is called {kind!r}; expected a name of lower-case letters, digits and _.")
    comments = [line.removeprefix("--").strip() for line in text.splitlines() if line.startswith("--")]
    facts: dict[str, str] = {}
    doc: list[str] = []
    parameters: list[Parameter] = []
    for line in comments:
        name, colon, rest = line.partition(": ")
        if colon and name in ("severity", "message"):
            facts[name] = rest
        elif colon and name == "parameter":
            parameters.append(_parse_parameter(rest, where=where))
        else:
            doc.append(line)
    for name in ("severity", "message"):
        if name not in facts:
            raise QueryError(f"the rule {where} has no line `-- {name}: …`; add one.")
    if facts["severity"] not in SEVERITIES:
        raise QueryError(
            f"the severity of the rule {where} is {facts['severity']!r}; expected {', '.join(SEVERITIES)}."
        )
    select = "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip().rstrip(";")
    rule = Rule(
        kind=kind,
        severity=facts["severity"],
        message=facts["message"],
        doc=" ".join(doc),
        parameters=tuple(parameters),
        select=select,
    )
    _check_placeholders(rule, where=where)
    return rule


def _parse_parameter(text: str, *, where: str) -> Parameter:
    name, _, rest = text.partition(" ")
    default, _, doc = rest.partition(" ")
    try:
        return Parameter(name=name, default=float(default), doc=doc)
    except ValueError:
        raise QueryError(
            f"the rule {where} has the line `-- parameter: {text}`; expected a name, a number and a description."
        ) from None


def _check_placeholders(rule: Rule, *, where: str) -> None:
    names = {parameter.name for parameter in rule.parameters}
    unknown = sorted(set(re.findall(r"\{(\w+)\}", rule.select)) - names)
    if unknown:
        raise QueryError(
            f"the rule {where} uses {{{unknown[0]}}}, which is not one of its parameters; add a line for it."
        )
    try:
        rule.message.format(value=0.5, **rule.values({}))
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise QueryError(f"the message of the rule {where} cannot be formatted: {error!r}.") from error


def alert_view(rules: Iterable[Rule]) -> str:
    """Returns the SELECT of the view `alert`: the findings of the rules with their default parameters."""
    columns = ", ".join(COLUMNS)
    return "\nUNION ALL\n".join(
        f"SELECT '{rule.kind}' AS kind, '{rule.severity}' AS severity, {columns} FROM (\n{rule.sql()}\n) AS found"
        for rule in rules
    )
