"""`tfdbg-arrow alerts` and `tfdbg-arrow check`: the findings of the alert rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import (
    JsonOption,
    MemoryLimitOption,
    RunOption,
    SkipBrokenOption,
    console,
    plain_table,
    print_about,
    print_json,
    reading,
    styled,
)
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.safe_text import number_of, printable_line

if TYPE_CHECKING:
    from tfdbg_arrow.query import AboutRuns, Alert, AlertFinding, Alerts, Frame

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}
_SEVERITIES = ("error", "warning", "info")

LogdirArgument = Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")]
RuleOption = Annotated[
    list[str] | None, typer.Option("--rule", metavar="NAME", help="Run only this rule. Can be given several times.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="RULE.NAME=NUMBER", help="Set a rule's parameter, e.g. overflow_near.bits=8."),
]
RulesOption = Annotated[
    str | None, typer.Option("--rules", metavar="DIR", help="A directory with your own rules, as .sql files.")
]
AllOption = Annotated[bool, typer.Option("--all", "--expand", help="List every alert instead of the findings.")]
LimitOption = Annotated[int, typer.Option(metavar="N", help="Show at most N findings (or alerts) of each rule.")]


def alerts(
    logdir: LogdirArgument,
    rule: RuleOption = None,
    parameters: SetOption = None,
    rules: RulesOption = None,
    run_id: RunOption = None,
    limit: LimitOption = 100,
    expand: AllOption = False,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Lists what the alert rules find: overflows, vanishing gradients, dead ReLUs, and so on.

    A table counts the alerts of each rule, and the findings follow. A finding groups the alerts of one rule for one
    layer and one line of your code; --all lists each alert.

    Exit codes: 0 no errors and no warnings, 1 at least one, 2 the command failed or a rule was stopped.
    """
    found, about = _run(
        logdir, rule, parameters, rules, run_id=run_id, limit=limit, skip_broken=skip_broken, memory_limit=memory_limit
    )
    if json:
        _print_json(logdir, found, about)
    else:
        print_about(about)
        _print_summary(found)
        _print(found, expand=expand, limit=limit)
    is_clean = all(alert.severity == "info" for alert in found.findings)
    raise typer.Exit(_exit_code(found, is_clean=is_clean))


def check(
    logdir: LogdirArgument,
    rule: RuleOption = None,
    parameters: SetOption = None,
    rules: RulesOption = None,
    run_id: RunOption = None,
    limit: LimitOption = 10,
    expand: AllOption = False,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Fails if a rule finds something; meant for CI. Without --rule, fails if a NaN or infinity did harm.

    Exit codes: 0 nothing found, 1 something found, 2 the command failed or a rule was stopped.
    """
    rule = rule or ["nonfinite_origin"]
    found, about = _run(
        logdir, rule, parameters, rules, run_id=run_id, limit=limit, skip_broken=skip_broken, memory_limit=memory_limit
    )
    if json:
        _print_json(logdir, found, about)
    elif found.findings or found.not_run:
        print_about(about)
        _print(found, expand=expand, limit=limit)
    else:
        print_about(about)
        typer.echo("Nothing found by " + ", ".join(found.num_found) + ".")
    raise typer.Exit(_exit_code(found, is_clean=all(finding.is_expected for finding in found.findings)))


def _exit_code(found: Alerts, *, is_clean: bool) -> int:
    """Returns 1 if there is a finding, 2 if there is none but a rule could not be run, else 0."""
    if not is_clean:
        return 1
    return 2 if found.not_run else 0


def _print_json(logdir: str, found: Alerts, about: AboutRuns) -> None:
    names = ("findings", "alerts", "num_found", "num_cut", "not_run")
    facts = {name: getattr(found, name) for name in names}
    print_json({"logdir": logdir, "about": about, "summary": found.summary, **facts})


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
) -> tuple[Alerts, AboutRuns]:
    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
        found = opened.alerts(
            kinds=rule or None,
            parameters=_parse(parameters or []),
            rules_directory=rules,
            run_id=run_id,
            limit=limit,
        )
        return found, opened.about_runs(run_id=run_id)


def _parse(settings: list[str]) -> dict[str, dict[str, float]]:
    parameters: dict[str, dict[str, float]] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        kind, _, parameter = name.partition(".")
        try:
            parameters.setdefault(kind, {})[parameter] = float(text)
        except ValueError:
            raise QueryError(f"--set is {setting!r}; expected RULE.NAME=NUMBER, e.g. overflow_near.bits=8.") from None
    return parameters


def _print_summary(found: Alerts) -> None:
    """Prints the number of alerts, places and steps of each rule."""
    from tfdbg_arrow.query.wording import steps_text

    if not found.findings:
        return
    out = console()
    table = plain_table("", "rule", "steps", numbers=("alerts", "places"))
    for rule in found.summary:
        table.add_row(
            styled((rule.severity, _STYLES[rule.severity])),
            styled(rule.kind),
            styled(steps_text(rule.first_step, rule.last_step).partition(" ")[2]),
            f"{rule.num_alerts:,}",
            f"{rule.num_places:,}",
        )
    out.print(table)
    out.print()


def _print(found: Alerts, *, expand: bool, limit: int) -> None:
    out = console()
    if not found.findings and not found.not_run:
        out.print(styled("No rule found anything."))
    if expand:
        for alert in found.alerts:
            _print_alert(alert)
        shown = Counter(alert.kind for alert in found.alerts)
        _print_rest("alerts", {kind: number - shown[kind] for kind, number in found.num_found.items()})
    else:
        numbers: Counter[str] = Counter()
        for finding in found.findings:
            numbers[finding.kind] += 1
            if numbers[finding.kind] <= limit:
                _print_finding(finding)
        _print_rest("findings", {kind: number - limit for kind, number in numbers.items()})
        rolled_up = Counter(dict.fromkeys(found.num_found, 0))
        for finding in found.findings:
            rolled_up[finding.kind] += finding.num_alerts
        for kind, number in found.num_found.items():
            if number > rolled_up[kind]:
                text = (
                    f"{kind} has {number_of(number, 'alert')}; the findings cover only the first {rolled_up[kind]:,}."
                )
                out.print(styled((text, "bold")))
        if any(finding.num_alerts > 1 for finding in found.findings):
            out.print(styled(("--all lists every alert.", "dim")))
    for kind, error in found.not_run.items():
        out.print(styled((f"The rule {kind} did not finish: {printable_line(error)}", "bold red")))


def _print_rest(what: str, left: Mapping[str, int]) -> None:
    rest = {kind: number for kind, number in left.items() if number > 0}
    if rest:
        names = ", ".join(f"{number:,} of {kind}" for kind, number in rest.items())
        text = f"{sum(rest.values()):,} more {what} are not shown ({names}); --limit raises the limit."
        console().print(styled((text, "bold")))


def _print_finding(finding: AlertFinding) -> None:
    """Prints a finding: how often it occurred, its first alert, then the steps, events and source line."""
    from tfdbg_arrow.query.wording import alert_text, events_text, steps_text

    out = console()
    number = "" if finding.num_alerts == 1 else f"{finding.num_alerts:,} times, first "
    layer = "" if finding.layer is None else f", layer {finding.layer}"
    out.print(
        styled(
            (finding.severity, _STYLES[finding.severity]),
            f" {finding.kind}: {number}",
            (alert_text(finding.first), "bold"),
            layer,
        )
    )
    out.print(styled(f"    {finding.first.message}"))
    events = events_text(finding.first_event_index, finding.last_event_index, finding.num_events)
    steps = steps_text(finding.first_step, finding.last_step)
    if events or steps:
        out.print(styled((f"    {', '.join(filter(None, (steps, events)))}", "dim")))
    _print_source(finding.source)


def _print_alert(alert: Alert) -> None:
    from tfdbg_arrow.query.wording import alert_text, events_text

    out = console()
    out.print(styled((alert.severity, _STYLES[alert.severity]), f" {alert.kind}: ", (alert_text(alert), "bold")))
    out.print(styled(f"    {alert.message}"))
    events = events_text(alert.first_event_index, alert.last_event_index, alert.num_events)
    if events:
        out.print(styled((f"    {events}", "dim")))
    _print_source(alert.source)


def _print_source(source: Frame | None) -> None:
    if source is not None:
        code = "" if source.code is None else f"  {printable_line(source.code)}"
        console().print(styled((f"    {source.place}{code}", "dim")))
