"""Data flow: which tensors an op took as inputs, across graphs, calls, loop iterations, variables and eager code.

`data_flow` is the entry point: it follows a recorded tensor back to the tensors that it was computed from. `graphs`,
`executed_graphs`, `graph_rows` and `events` read the recorded data. `borders`, `callsites`, `executed_edges`,
`resources` and `contents` follow tensors across borders, `pipelines` out of data sets, and `python_functions` into and
out of `tf.py_function`. `origins` decides whether an op created a bad value, and `masks` whether it is the logarithm of
a mask. `sinks` and `walk` find where bad values end, and `skipped` finds the results that a program did not use once.
`culprits` finds the op to blame. `extremes` knows the ops that hide NaN behind the lowest number of a dtype.
"""
