"""The TensorFlow backend: TensorFlow's own ops measure tensors, on the device where a tensor is.

It is for programs with a GPU. `backend.py` measures eager tensors. For the graphs that TensorFlow runs, the native
core adds nodes that count elements (`device_graphs()` makes them), and one copy for each call brings the counts to the
host. For functions that XLA compiles, `compiled.py` makes the ops that count inside of them.

The native core measures two kinds of tensors on the host: all tensors in mode FULL_TENSOR, which keeps their elements,
and tensors of dtypes that TensorFlow cannot compute with.

Differences from the native backend: the tensors of a graph are recorded together, once all of them are computed, so a
call that raises an error may leave no rows. `execution_index` is NULL while two calls that could have made a tensor run
at the same time.

It is tested only on CPUs. On GPUs it should work because TensorFlow has a GPU kernel for every op that it places there.
"""
