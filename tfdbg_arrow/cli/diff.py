"""`tfdbg-arrow diff`: where two runs part, by layer and by op."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import Opening, print_result, reading, reading_options

if TYPE_CHECKING:
    from tfdbg_arrow.query import Diff, LayerDifferences, Logdir, Parting


@click.command("diff", cls=Command)
@click.argument("a", help="The logdir (directory or URL) of one recording.")
@click.argument("b", required=False, help="The logdir of another. Without it, two runs of A are compared.")
@click.option("--run-a", metavar="RUN", help="The run of A to compare.")
@click.option("--run-b", metavar="RUN", help="The run of B to compare.")
@click.option(
    "--rtol",
    metavar="R",
    type=float,
    help="Relative tolerance, measured against a tensor's largest magnitude. Default: 16 units in the last "
    "place of the coarsest dtype that has differed so far (float32 1.9e-6, float16 1.6e-2, bfloat16 0.13).",
)
@click.option(
    "--atol",
    metavar="A",
    type=float,
    help="Absolute tolerance. Default: the magnitude below which the coarser dtype loses relative precision "
    "(float16 6e-8).",
)
@click.option(
    "--growth",
    metavar="G",
    type=float,
    help="An op diverges if the relative difference of its output is more than G times that of its inputs. "
    "Default: 10.",
)
@click.option(
    "--known",
    metavar="PATTERN",
    help="Search past ops that are known to diverge: a regular expression that matches a whole name or type.",
)
@click.option("--last-step", metavar="N", type=int, help="Compare only up to training step N, which is faster.")
@click.option("--limit", metavar="N", type=int, default=20, help="List at most N ops per run that only this run has.")
@reading_options
def diff(
    a: str,
    b: str | None,
    run_a: str | None,
    run_b: str | None,
    rtol: float | None,
    atol: float | None,
    growth: float | None,
    known: str | None,
    last_step: int | None,
    limit: int,
    opening: Opening,
    json: bool,
) -> None:
    """Names the layer that parted first, and the op at which two runs of a program first diverge in data flow.

    Layers are compared by name, step by step. The op comes with both tensors and the line of code.

    Executions, graphs, ops, loop iterations and training steps of the runs are aligned by structure and source, not by
    ids or by the numbers in names. An op diverges if its output differs by more than the tolerance while its inputs do
    not, or differ far less. Rounding that grows from op to op, as in float16 against float32, is not a divergence.

    Exit codes: 0 nothing diverges, 1 something does, 2 an error.
    """
    from tfdbg_arrow.query import diff as compare
    from tfdbg_arrow.query.present import runs as present
    from tfdbg_arrow.query.run_diff.comparing import DEFAULT_GROWTH

    with contextlib.ExitStack() as stack:
        logdir_a = stack.enter_context(reading(a, opening, what="Comparing …"))
        logdir_b = None if b is None else stack.enter_context(reading(b, opening, what=None))
        answer = compare(
            logdir_a,
            logdir_b,
            run_a=run_a,
            run_b=run_b,
            rtol=rtol,
            atol=atol,
            growth=DEFAULT_GROWTH if growth is None else growth,
            known=known,
            last_step=last_step,
            limit=limit,
        )
        layers = _compare_layers(logdir_a, logdir_b, answer, rtol=rtol, last_step=last_step)
    facts = {"a": a, "b": b, "diff": answer, "layers": None if layers is None else _layers_json(layers)}
    print_result(facts, present.diff(answer, layers), json=json)
    raise Exit(0 if answer.divergence is None else 1)


def _compare_layers(
    a: Logdir, b: Logdir | None, answer: Diff, *, rtol: float | None, last_step: int | None
) -> LayerDifferences | None:
    from tfdbg_arrow.query import layer_differences

    positions = (None, None if last_step is None else last_step + 1)
    layers = layer_differences(a, b, run_a=answer.run_a, run_b=answer.run_b, rtol=rtol, positions=positions)
    if layers is not None and layers.axis != "step" and last_step is not None:  # the positions are not steps
        layers = layer_differences(a, b, run_a=answer.run_a, run_b=answer.run_b, rtol=rtol)
    return layers


def _layers_json(layers: LayerDifferences) -> dict[str, object]:
    """Returns the comparison of the layers without the numbers of each cell."""

    def place(parting: Parting | None) -> dict[str, object] | None:
        if parting is None:
            return None
        row = layers.rows[parting.row]
        named = {"layer": row.layer, "kind": row.kind, "side": row.side}
        return named | {name: value for name, value in vars(parting).items() if name not in ("row", "column")}

    return {
        "sentence": layers.sentence,
        "notes": layers.notes,
        "axis": layers.axis,
        "range_a": layers.range_a,
        "range_b": layers.range_b,
        "rtol": layers.rtol,
        "first_parting": place(layers.first_parting),
        "large_parting": place(layers.large_parting),
        "partings": [place(parting) for parting in layers.partings],
        "only_a": layers.only_a,
        "only_b": layers.only_b,
    }
