"""Draws the results of overhead.py and soak.py with matplotlib (requirements/benchmarks.txt).

python benchmarks/plots.py overhead benchmarks/results/overhead.json docs/images/overhead.svg
python benchmarks/plots.py soak benchmarks/results/soak.json docs/images/soak.svg
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
# Store text as text instead of shapes, and make the same file for the same numbers.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tfdbg_arrow", "font.size": 9})

from matplotlib import pyplot as plt  # noqa: E402

OURS, TRACED, DEBUGGER_V2, CHECK_NUMERICS = "tfdbg_arrow/", "tfdbg_arrow-traced/", "debugger_v2/", "check_numerics"
COLORS = {OURS: "#2a78d6", TRACED: "#7fb0e6", DEBUGGER_V2: "#c8553d", CHECK_NUMERICS: "#8a8f98"}
LABELS = {
    OURS: "tfdbg_arrow",
    TRACED: "tfdbg_arrow, traced:",
    DEBUGGER_V2: "Debugger V2",
    CHECK_NUMERICS: "check_numerics",
}


def overhead(document: dict[str, Any]) -> Any:
    """Returns a figure of the time of a step, relative to the time without recording, by program and mode."""
    rows = [row for row in document["summary"] if row["ratio_to_none"] is not None and row["config"] != "none"]
    programs = list(dict.fromkeys(row["program"] for row in rows))
    figure, axes = plt.subplots(1, len(programs), figsize=(3.1 * len(programs), 3.6), sharey=True, squeeze=False)
    in_order = list(dict.fromkeys(row["config"] for row in rows))
    configs = sorted(in_order, key=lambda config: list(COLORS).index(_family(config)))
    for axis, program in zip(axes[0], programs, strict=True):
        ratios = {row["config"]: row["ratio_to_none"] for row in rows if row["program"] == program}
        values = [ratios.get(config, float("nan")) for config in configs]
        axis.barh(range(len(configs)), values, color=[COLORS[_family(config)] for config in configs])
        for place, value in enumerate(values):
            axis.text(value * 1.05, place, f"{value:.2f}" if value < 10 else f"{value:.0f}", va="center", fontsize=8)
        axis.set_xscale("log")
        axis.axvline(1, color="#444", linewidth=0.8)
        axis.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axis.set_xlim(0.8, 3 * max(row["ratio_to_none"] for row in rows))
        axis.set_title(program)
        axis.set_yticks(range(len(configs)), [_label(config) for config in configs])
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()  # inverts the y axis of all plots, because they share this axis
    figure.supxlabel("time of a step, as a multiple of no recording", fontsize=9)
    figure.tight_layout()
    return figure


def _family(config: str) -> str:
    return next(family for family in COLORS if config.startswith(family))


def _label(config: str) -> str:
    family = _family(config)
    mode = config.removeprefix(family).replace("@10", ", every 10th step")
    return f"{LABELS[family]} {mode}".rstrip()


def soak(document: dict[str, Any]) -> Any:
    """Returns a figure of step time, memory, rows and files over the time of a recording."""
    samples = document["samples"]
    minutes = [sample["elapsed_s"] / 60 for sample in samples]
    panels = (
        ("step, ms", [sample["step_ms"] for sample in samples]),
        ("memory, MB", [sample["memory_bytes"] / 1e6 for sample in samples]),
        ("rows, millions", [sample["rows"] / 1e6 for sample in samples]),
        ("files", [sample["num_files"] for sample in samples]),
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(3.1 * len(panels), 2.4))
    for axis, (title, values) in zip(axes, panels, strict=True):
        axis.plot(minutes, values, color=COLORS[OURS], linewidth=1)
        axis.set_ylim(0, 1.15 * max(values) or 1)
        axis.set_title(title)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("minutes", fontsize=9)
    figure.tight_layout()
    return figure


def main() -> int:
    """Draws one figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "soak"))
    parser.add_argument("results", type=Path, help="the JSON that the benchmark wrote")
    parser.add_argument("image", type=Path, help="the SVG to write")
    arguments = parser.parse_args()
    draw = {"overhead": overhead, "soak": soak}[arguments.what]
    figure = draw(json.loads(arguments.results.read_text()))
    figure.savefig(arguments.image, metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
