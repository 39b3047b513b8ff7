"""Data flow: which tensors an op took as inputs, across graphs, calls, loop iterations, variables and eager code.

`data_flow` is the entry point. It follows a recorded tensor back to the tensors from which that tensor was computed.
The other modules are:

- `graphs`, `executed_graphs`, `graph_rows` and `events` read the recorded data.
- `borders`, `callsites`, `executed_edges`, `resources` and `contents` follow tensors across borders.
- `pipelines` follows tensors out of data sets, and `python_functions` follows them into and out of `tf.py_function`.
- `origins` decides whether an op created a bad value. `masks` recognizes the logarithms of masks.
- `sinks` and `walk` find where bad values end. `skipped` finds the results that a program usually uses, but skipped
  once.
- `culprits` finds the op to blame.
- `extremes` knows the ops that hide NaN behind the lowest number of a dtype.
"""
