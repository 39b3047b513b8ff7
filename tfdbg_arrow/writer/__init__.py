"""Recording: from TensorFlow to the Parquet files of a logdir.

Two modules start a recording: `active_recording.py` (enable, disable, capture, mark) and `launch.py` (for a program
that does not call tfdbg_arrow, or that calls TensorFlow's own entry points). `settings.py` declares and checks the
settings. The other modules are, in the order of the data flow:

* `hooks`: wraps TensorFlow's private API; no other package uses it.
* `recording`: one recording and its reactions to the hooks.
* `graphs`: converts graphs into rows, and adds the ops that record the tensors of graphs.
* `backend.py`: measures tensors in the compiled core, and gives access to the core's spool. `tfdbg_arrow.spool` defines
  the records of the spool. `tensorflow_backend` counts the elements of tensors on a GPU with TensorFlow's ops.
* `sink`: writes the spool into sealed Parquet parts; `remote` sends them to a URL.
* `recover.py`: converts the spool that a killed process left into parts.
* `live_stop`: reacts to bad values while the program runs.
"""

from tfdbg_arrow.writer.arrow_allocator import load_pyarrow

load_pyarrow()  # must run before a module of this package imports pyarrow
