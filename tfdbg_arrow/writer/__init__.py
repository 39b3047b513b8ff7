"""Recording: from TensorFlow to the Parquet files of a logdir.

Three modules start a recording: `session.py` (enable, disable, capture, mark), `launch.py` (for a program without any
calls of its own) and `dump_api.py` (TensorFlow's own entry points). `settings.py` checks the settings. The other
modules, in the order of the data flow:

* `hooks`: wraps TensorFlow's private API; no other package uses it.
* `recording`: one recording and its reactions to the hooks.
* `graphs`: converts graphs into rows, and adds the ops that make graphs record.
* `backend.py`: measures tensors, in two ways: `native_backend.py` with the compiled core in `native`, and
  `tensorflow_backend` with TensorFlow's own summary op.
* `events.py` and `recorder.py`: the two ends of the spool, whose records are those of `tfdbg_arrow.spool`.
* `sink`: writes the spool into sealed Parquet parts; `remote` sends them to a URL.
* `recover.py`: converts the spool that a killed process left into parts.
* `live_stop`: reacts to bad values while the program runs.

`debugger_v2` imports and exports TensorFlow's own dumps.
"""
