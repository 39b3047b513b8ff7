"""Recording: from TensorFlow to the Parquet files of a logdir.

What starts a recording: `session.py` (enable, disable, capture, mark), `launch.py` (a program that knows nothing of it)
and `dump_api.py` (TensorFlow's own entry points). `settings.py` checks what was asked for. Then, in the order of the
data:

* `hooks`: TensorFlow's private API, which nothing else touches.
* `recording`: one recording, and what it does when the hooks tell it something.
* `graphs`: what graphs hold, as rows; and the ops that make them record.
* `backend.py`: what measures tensors, in two ways: `native_backend.py` with the compiled core in `native`, and
  `tensorflow_backend` with TensorFlow's own summary op.
* `events.py` and `recorder.py`: the two ends of the spool, whose records are those of `tfdbg_arrow.spool`.
* `sink`: from the spool to sealed Parquet parts; `remote` sends them to a URL.
* `recover.py`: makes parts of what a killed process left in its spool.
* `live_stop`: what is done about bad values while the program runs.

`debugger_v2` imports and exports TensorFlow's own dumps.
"""
