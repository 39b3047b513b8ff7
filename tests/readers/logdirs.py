"""Logdirs that other programs read: a recorded one, and one with awkward values. Neither needs TensorFlow."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

from ..query.builder import CLEAN, INF, NAN, RunBuilder

GOLDEN = Path(__file__).parents[1] / "compat" / "golden"
RANDOM = (-(2**63), 2**63 - 1, 7_046_029_254_386_353_131, -3_335_678_366_873_096_957, 0)
MAGNITUDES = (math.nan, 5.0, None, -math.inf, 150.0, math.inf)


def newest_golden() -> Path:
    """Returns the recorded logdir of the newest format that has a value of each type."""
    newest = max(GOLDEN.iterdir(), key=lambda path: tuple(int(number) for number in path.name.split(".")))
    return newest / "full_tensor"


def recorded(target: Path) -> Path:
    """Copies a recorded logdir."""
    return Path(shutil.copytree(newest_golden(), target))


def awkward(target: Path) -> Path:
    """Writes a logdir of two runs with random numbers of 64 bits, NaN, infinity, NULL, lists and bytes."""
    for run_id in ("run-a", "run-b"):
        run = RunBuilder(run_id)
        graph = run.graph("f").op("x", "Log")
        for index in range(60):
            run.tensor(graph, "x", (NAN, INF, CLEAN)[index % 3])
            row: dict[str, Any] = run.rows["tensor_health"][-1]
            row |= dict.fromkeys(("min_finite", "max_finite"), MAGNITUDES[index // 3 % 6])
            row |= {"step_id": RANDOM[index % 5], "frame_id": RANDOM[index // 5 % 5]}
            row |= {"wall_time_ns": index * 4_000_000_000, "wall_time": index * 4_000_000 + 1}
            row |= {"shape": None if index % 4 == 0 else list(range(index % 4 - 1))}
            if index % 3:
                row |= {"histogram_negative": [0] * (index % 3 - 1), "histogram_positive": [2**40] * (index % 3 - 1)}
            if index % 3 == 2:
                row |= {"histogram_exponent": -1074}
            run.add("tensor_value", event_index=index, dtype="uint8", shape=[3], value=bytes([0, 255, index]))
            run.add("mark", event_index=index, label="Ünï ☃", value="" if index % 2 else "a\nb")
        run.write(target, parts=3)
    return target
