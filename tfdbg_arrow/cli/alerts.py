"""`tfdbg-arrow alerts` and `tfdbg-arrow check`: what the rules find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, console, print_json, printable_line, styled
from tfdbg_arrow.cli.reading import MemoryLimitOption, SkipBrokenOption, reading
from tfdbg_arrow.errors import QueryError

if TYPE_CHECKING:
    from tfdbg_arrow.query import Alert, Alerts

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}
_SEVERITIES = ("error", "warning", "info")

LogdirArgument = Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")]
RuleOption = Annotated[
    list[str] | None, typer.Option("--rule", metavar="NAME", help="Only this rule; may be given several times.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="RULE.NAME=NUMBER", help="A rule's parameter, as overflow_near.bits=8."),
]
RulesOption = Annotated[
    str | None, typer.Option("--rules", metavar="DIR", help="A directory of rules of your own, as .sql files.")
]
RunOption = Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Only this run.")]
LimitOption = Annotated[int, typer.Option(metavar="N", help="At most so many alerts of each rule.")]


def alerts(
    logdir: LogdirArgument,
    rule: RuleOption = None,
    parameters: SetOption = None,
    rules: RulesOption = None,
    run_id: RunOption = None,
    limit: LimitOption = 100,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Lists what the alert rules find: overflows, gradients that vanish, dead rectifiers, and so on.

    Exit codes: 0 no error and no warning, 1 one at least, 2 an error of the command.
    """
    found = _run(
        logdir, rule, parameters, rules, run_id=run_id, limit=limit, skip_broken=skip_broken, memory_limit=memory_limit
    )
    if json:
        print_json({"logdir": logdir, **{name: getattr(found, name) for name in ("alerts", "num_found", "num_cut")}})
    else:
        _print(found)
    is_clean = all(alert.severity == "info" for alert in found.alerts) and not found.num_cut
    raise typer.Exit(0 if is_clean else 1)


def check(
    logdir: LogdirArgument,
    rule: RuleOption = None,
    parameters: SetOption = None,
    rules: RulesOption = None,
    run_id: RunOption = None,
    limit: LimitOption = 10,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Fails where a rule finds something: for CI. Without --rule: where a NaN or infinity came up.

    Exit codes: 0 nothing found, 1 something, 2 an error.
    """
    rule = rule or ["nonfinite_origin"]
    found = _run(
        logdir, rule, parameters, rules, run_id=run_id, limit=limit, skip_broken=skip_broken, memory_limit=memory_limit
    )
    if json:
        print_json({"logdir": logdir, **{name: getattr(found, name) for name in ("alerts", "num_found", "num_cut")}})
    elif found.alerts or found.num_cut:
        _print(found)
    else:
        typer.echo("Nothing found by " + ", ".join(found.num_found) + ".")
    raise typer.Exit(1 if found.alerts or found.num_cut else 0)


def _run(
    logdir: str,
    rule: list[str] | None,
    parameters: list[str] | None,
    rules: str | None,
    *,
    run_id: str | None,
    limit: int,
    skip_broken: bool,
    memory_limit: str | None,
) -> Alerts:
    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
        return opened.alerts(
            kinds=rule or None,
            parameters=_parse(parameters or []),
            rules_directory=rules,
            run_id=run_id,
            limit=limit,
        )


def _parse(settings: list[str]) -> dict[str, dict[str, float]]:
    parameters: dict[str, dict[str, float]] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        kind, _, parameter = name.partition(".")
        try:
            parameters.setdefault(kind, {})[parameter] = float(text)
        except ValueError:
            raise QueryError(f"--set is {setting!r}; expected RULE.NAME=NUMBER, as overflow_near.bits=8.") from None
    return parameters


def _print(found: Alerts) -> None:
    out = console()
    if not found.alerts and not found.num_cut:
        out.print(styled("No rule found anything."))
    for alert in found.alerts:
        out.print(styled((alert.severity, _STYLES[alert.severity]), f" {alert.kind}: ", (_what(alert), "bold")))
        out.print(styled(f"    {alert.message}"))
        events = f"event {alert.first_event_index}"
        if alert.num_events > 1:
            events = f"events {alert.first_event_index} to {alert.last_event_index}, {alert.num_events:,} tensors"
        if alert.first_event_index is not None:
            out.print(styled((f"    {events}", "dim")))
        if alert.source is not None:
            line = f"    {alert.source.file_path}:{alert.source.lineno}"
            code = "" if alert.source.code is None else f"  {printable_line(alert.source.code)}"
            out.print(styled((line + code, "dim")))
    if found.num_cut:
        shown = {kind: sum(alert.kind == kind for alert in found.alerts) for kind in found.num_found}
        rest = ", ".join(
            f"{number - shown[kind]:,} of {kind}" for kind, number in found.num_found.items() if number > shown[kind]
        )
        out.print(styled((f"{found.num_cut:,} more are not shown ({rest}); --limit raises that.", "bold")))


def _what(alert: Alert) -> str:
    slot = "" if alert.output_slot is None else f":{alert.output_slot}"
    where = "" if alert.graph_name is None else f" in {alert.graph_name}"
    if alert.op_name is not None:
        return f"{alert.op_name}{slot} ({alert.op_type}){where}"
    if alert.op_type is not None:
        return f"{alert.op_type}{slot}, run eagerly"
    return f"the function{where.removeprefix(' in')}" if alert.graph_name else "a tensor from outside"
