"""Recording: from TensorFlow to the Parquet files of a logdir.

Two modules start a recording: `active_recording.py` (enable, disable, capture, mark) and `launch.py` (for a program
without any calls of its own, or with calls of TensorFlow's own entry points). `settings.py` declares and checks the
settings. The other modules, in the order of the data flow:

* `hooks`: wraps TensorFlow's private API; no other package uses it.
* `recording`: one recording and its reactions to the hooks.
* `graphs`: converts graphs into rows, and adds the ops that make graphs record.
* `backend.py`: measures tensors in the compiled core, and is the core's spool, whose records are those of
  `tfdbg_arrow.spool`. `tensorflow_backend` counts tensors on a GPU with TensorFlow's ops.
* `sink`: writes the spool into sealed Parquet parts; `remote` sends them to a URL.
* `recover.py`: converts the spool that a killed process left into parts.
* `live_stop`: reacts to bad values while the program runs.
"""

from tfdbg_arrow.writer.address_space import load_pyarrow_sparingly

load_pyarrow_sparingly()  # before a module of this package imports it
