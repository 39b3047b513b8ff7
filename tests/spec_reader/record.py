"""Records programs of the culprit corpus and keeps their logdirs.

`python -m tests.spec_reader.record DIRECTORY GRAPHS PROGRAM...` writes the logdir `DIRECTORY/<program>/logdir` of each
program. GRAPHS is `traced` or `executed`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

import tfdbg_arrow
from tests.culprit.corpus import programs
from tests.culprit.record import run


def main() -> None:
    """Records the programs that the command line names."""
    directory, graphs, *names = sys.argv[1:]
    # Programs with a distribution strategy need two devices.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for program in programs():
        if program.name in names:
            scratch = Path(directory, program.name, "scratch")
            scratch.mkdir(parents=True)
            run(program, tfdbg_arrow.capture(scratch.with_name("logdir"), graphs=graphs), scratch=scratch)


if __name__ == "__main__":
    main()
