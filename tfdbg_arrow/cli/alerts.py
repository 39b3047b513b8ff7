"""`tfdbg-arrow alerts` and `tfdbg-arrow check`: the findings of the alert rules."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import Opening, print_result, reading, reading_options, run_option
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.present.blocks import Line

if TYPE_CHECKING:
    from tfdbg_arrow.query import AboutRuns, Alerts

_PARAMETERS = (
    click.argument("logdir", help="The directory that a recording wrote."),
    click.option("--rule", metavar="NAME", multiple=True, help="Run only this rule. Can be given several times."),
    click.option(
        "--set",
        "parameters",
        metavar="RULE.NAME=NUMBER",
        multiple=True,
        help="Set a rule's parameter, e.g. overflow_near.bits=8.",
    ),
    click.option("--rules", metavar="DIR", help="A directory with your own rules, as .sql files."),
    run_option,
    click.option("--all", "--expand", "expand", is_flag=True, help="List every alert instead of the findings."),
    reading_options,
)


def _with_parameters(*, limit: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that declares the parameters of both commands, with a default limit."""
    shown = "Show at most N findings (or alerts) of each rule."
    limit_option = click.option("--limit", metavar="N", type=int, default=limit, help=shown)

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        return functools.reduce(lambda function, add: add(function), reversed((*_PARAMETERS, limit_option)), command)

    return declare


@click.command("alerts", cls=Command)
@_with_parameters(limit=100)
def alerts(logdir: str, limit: int, expand: bool, json: bool, **asked: Any) -> None:
    """Lists what the alert rules find: overflows, vanishing gradients, dead ReLUs, and so on.

    A table counts the alerts of each rule, and the findings follow. A finding groups the alerts of one rule for one
    layer and one line of your code; --all lists each alert.

    Exit codes: 0 no errors and no warnings, 1 at least one, 2 the command failed or a rule was stopped.
    """
    from tfdbg_arrow.query.present.findings import findings, summary

    answer, about = _run(logdir, limit=limit, **asked)
    text = itertools.chain(summary(answer.summary), findings(answer, expand=expand, limit=limit))
    print_result(_facts(logdir, answer, about), text, json=json, about=about)
    is_clean = all(alert.severity == "info" for alert in answer.findings)
    raise Exit(_exit_code(answer, is_clean=is_clean))


@click.command("check", cls=Command)
@_with_parameters(limit=10)
def check(logdir: str, limit: int, expand: bool, json: bool, **asked: Any) -> None:
    """Fails if a rule finds something; meant for CI. Without --rule, fails if a NaN or infinity did harm.

    Exit codes: 0 nothing found, 1 something found, 2 the command failed or a rule was stopped.
    """
    from tfdbg_arrow.query.present.findings import findings

    asked["rule"] = asked["rule"] or ("nonfinite_origin",)
    answer, about = _run(logdir, limit=limit, **asked)
    text = findings(answer, expand=expand, limit=limit)
    if not answer.findings and not answer.not_run:
        text = iter([Line("Nothing found by " + ", ".join(answer.num_found) + ".")])
    print_result(_facts(logdir, answer, about), text, json=json, about=about)
    raise Exit(_exit_code(answer, is_clean=all(finding.is_expected for finding in answer.findings)))


def _exit_code(answer: Alerts, *, is_clean: bool) -> int:
    """Returns 1 if there is a finding, 2 if there is none but a rule could not be run, otherwise 0."""
    if not is_clean:
        return 1
    return 2 if answer.not_run else 0


def _facts(logdir: str, answer: Alerts, about: AboutRuns) -> dict[str, object]:
    """Returns the JSON object."""
    names = ("findings", "alerts", "num_found", "num_cut", "not_run", "num_unjudged")
    facts = {name: getattr(answer, name) for name in names}
    return {"logdir": logdir, "about": about, "summary": answer.summary, **facts}


def _run(
    logdir: str,
    *,
    opening: Opening,
    rule: Sequence[str],
    parameters: Sequence[str],
    rules: str | None,
    run_id: str | None,
    limit: int,
) -> tuple[Alerts, AboutRuns]:
    with reading(logdir, opening) as opened:
        answer = opened.alerts(
            kinds=rule or None,
            parameters=_parse(parameters),
            rules_directory=rules,
            run_id=run_id,
            limit=limit,
        )
        return answer, opened.about_runs(run_id=run_id)


def _parse(settings: Sequence[str]) -> dict[str, dict[str, float]]:
    parameters: dict[str, dict[str, float]] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        kind, _, parameter = name.partition(".")
        try:
            parameters.setdefault(kind, {})[parameter] = float(text)
        except ValueError:
            raise QueryError(f"--set is {setting!r}; expected RULE.NAME=NUMBER, e.g. overflow_near.bits=8.") from None
    return parameters
