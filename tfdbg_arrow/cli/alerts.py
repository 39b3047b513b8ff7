"""`tfdbg-arrow alerts` and `tfdbg-arrow check`: the findings of the alert rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import (
    JsonOption,
    MemoryLimitOption,
    RunOption,
    SkipBrokenOption,
    print_about,
    print_blocks,
    print_json,
    reading,
)
from tfdbg_arrow.errors import QueryError

if TYPE_CHECKING:
    from tfdbg_arrow.query import AboutRuns, Alerts

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
    from tfdbg_arrow.query.present.findings import findings, summary

    answer, about = _run(
        logdir, rule, parameters, rules, run_id=run_id, limit=limit, skip_broken=skip_broken, memory_limit=memory_limit
    )
    if json:
        _print_json(logdir, answer, about)
    else:
        print_about(about)
        print_blocks([*summary(answer.summary), *findings(answer, expand=expand, limit=limit)])
    is_clean = all(alert.severity == "info" for alert in answer.findings)
    raise typer.Exit(_exit_code(answer, is_clean=is_clean))


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
    from tfdbg_arrow.query.present.findings import findings

    rule = rule or ["nonfinite_origin"]
    answer, about = _run(
        logdir, rule, parameters, rules, run_id=run_id, limit=limit, skip_broken=skip_broken, memory_limit=memory_limit
    )
    if json:
        _print_json(logdir, answer, about)
    elif answer.findings or answer.not_run:
        print_about(about)
        print_blocks(findings(answer, expand=expand, limit=limit))
    else:
        print_about(about)
        typer.echo("Nothing found by " + ", ".join(answer.num_found) + ".")
    raise typer.Exit(_exit_code(answer, is_clean=all(finding.is_expected for finding in answer.findings)))


def _exit_code(answer: Alerts, *, is_clean: bool) -> int:
    """Returns 1 if there is a finding, 2 if there is none but a rule could not be run, else 0."""
    if not is_clean:
        return 1
    return 2 if answer.not_run else 0


def _print_json(logdir: str, answer: Alerts, about: AboutRuns) -> None:
    names = ("findings", "alerts", "num_found", "num_cut", "not_run")
    facts = {name: getattr(answer, name) for name in names}
    print_json({"logdir": logdir, "about": about, "summary": answer.summary, **facts})


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
        answer = opened.alerts(
            kinds=rule or None,
            parameters=_parse(parameters or []),
            rules_directory=rules,
            run_id=run_id,
            limit=limit,
        )
        return answer, opened.about_runs(run_id=run_id)


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
