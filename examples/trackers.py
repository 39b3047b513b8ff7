"""Sends the curves of a recording to Weights & Biases or to MLflow, while the recording goes on.

    python examples/trackers.py wandb LOGDIR EVENTS
    python examples/trackers.py mlflow LOGDIR EVENTS

LOGDIR is the logdir of one run, and EVENTS is a directory to create, which TensorBoard can show too. WANDB_MODE=offline
and MLFLOW_TRACKING_URI say where the numbers go. The script needs the packages tensorboard, and wandb or mlflow, and
the command tfdbg-arrow.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.util.tensor_util import make_ndarray


def follow(logdir: str, directory: str) -> Iterator[Any]:
    """Yields the events of an export that goes on until the recording has ended."""
    export = subprocess.Popen(["tfdbg-arrow", "export", "--tensorboard", "--follow", logdir, directory])
    loaders: dict[Path, LegacyEventFileLoader] = {}
    is_last = False
    while not is_last:
        is_last = export.poll() is not None  # looked up first, so that the last round reads everything
        for path in sorted(Path(directory).glob("*/events.out.tfevents.*")):
            loader = loaders.setdefault(path, LegacyEventFileLoader(str(path)))
            yield from loader.Load()  # what was appended since the last call
        time.sleep(0 if is_last else 1)


def to_wandb(logdir: str, directory: str) -> None:
    """Logs scalars and histograms to a new run of Weights & Biases."""
    import wandb

    with wandb.init(project="tfdbg_arrow") as run:
        for event in follow(logdir, directory):
            logged = {}
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    logged[value.tag] = value.simple_value
                elif value.metadata.plugin_data.plugin_name == "histograms":
                    left, right, count = make_ndarray(value.tensor).T
                    logged[value.tag] = wandb.Histogram(np_histogram=(count, np.append(left, right[-1])))
            if logged:
                run.log(logged, step=event.step)


def to_mlflow(logdir: str, directory: str) -> None:
    """Logs scalars to a new run of MLflow, which has no histograms and refuses some characters in names."""
    import mlflow
    from mlflow.entities import Metric

    client = mlflow.MlflowClient()
    with mlflow.start_run() as run:
        for event in follow(logdir, directory):
            time_ms = int(1000 * event.wall_time)
            metrics = [
                Metric(re.sub(r"[^\w\-. :/]", "_", value.tag), value.simple_value, time_ms, event.step)
                for value in event.summary.value
                if value.HasField("simple_value")
            ]
            for start in range(0, len(metrics), 1000):  # as many as MLflow takes at once
                client.log_batch(run.info.run_id, metrics[start : start + 1000])


if __name__ == "__main__":
    {"wandb": to_wandb, "mlflow": to_mlflow}[sys.argv[1]](*sys.argv[2:])
