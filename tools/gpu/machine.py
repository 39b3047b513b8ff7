"""Describes the machine in a separate process, because TensorFlow keeps a GPU's memory until its process ends."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tools.gpu.results import Machine

REPOSITORY = Path(__file__).resolve().parents[2]


def environment(*, is_cpu: bool) -> dict[str, str]:
    """Returns the environment of a process that uses TensorFlow.

    Args:
        is_cpu: Whether GPUs are hidden. If not, the process sees the GPUs in CUDA_VISIBLE_DEVICES, or the first GPU.
    """
    # The corpus and the tests hide the GPUs if CUDA_VISIBLE_DEVICES is not set.
    devices = "-1" if is_cpu else os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    # A check may use the GPU in its own process and in a process that it starts.
    settings = {"CUDA_VISIBLE_DEVICES": devices, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return {"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ, **settings}


def find_machine(*, is_cpu: bool) -> Machine:
    """Returns what TensorFlow and the driver report.

    If TensorFlow uses no GPU, TensorFlow writes the reason to stderr.
    """
    command = [sys.executable, "-m", "tools.gpu.machine"]
    variables = environment(is_cpu=is_cpu)
    done = subprocess.run(command, cwd=REPOSITORY, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return Machine(**json.loads(done.stdout.splitlines()[-1]))


def advice(machine: Machine) -> str:
    """Returns a text that says what to install if TensorFlow sees no GPU."""
    if machine.cuda is None:
        missing = "This TensorFlow has no kernels for GPUs. Install tensorflow[and-cuda], as `make gpu` does."
    elif machine.driver is None:
        missing = "NVIDIA's driver is missing. Install it; then `nvidia-smi` lists the GPU."
    else:
        missing = "A library of CUDA may be missing. Install tensorflow[and-cuda], as `make gpu` does."
    return f"TensorFlow {machine.tensorflow} sees no GPU. {missing} With --cpu, the checks run without a GPU."


def _driver() -> str | None:
    """Returns the version of NVIDIA's driver, or None if there is no working driver."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else None


def _main() -> None:
    """Prints the machine as a line of JSON."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    machine = Machine(
        device=tf.config.experimental.get_device_details(gpus[0]).get("device_name", gpus[0].name) if gpus else None,
        driver=_driver(),
        tensorflow=tf.__version__,
        cuda=tf.sysconfig.get_build_info().get("cuda_version"),
        python=platform.python_version(),
        num_cpus=os.cpu_count(),
    )
    print(json.dumps(asdict(machine)))


if __name__ == "__main__":
    _main()
