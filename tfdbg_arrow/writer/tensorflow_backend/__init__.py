"""The TensorFlow backend: TensorFlow's own ops count tensors on the device where they are.

This backend is for programs with a GPU. In the graphs that TensorFlow runs, the native core adds nodes that count
elements (`device_graphs()` makes these nodes), and one copy for each call brings the counts to the host.
`count_on_device()` counts large eager tensors. For functions that XLA compiles, `compiled.py` makes the ops that count
inside these functions.

The native core measures all other tensors on the host: those in host memory, eager tensors of up to a million elements,
all tensors in mode FULL_TENSOR, which keeps their elements, and tensors of dtypes that TensorFlow cannot compute with.

Differences from the native backend: on a device, subnormal numbers count as zeros unless the setting
`exact_subnormals` is on, and a NaN whose first bit of the mantissa is not set counts as an infinity. The tensors of a
graph are recorded together, once all of them are computed, so a call that raises an error may leave no rows.
"""
