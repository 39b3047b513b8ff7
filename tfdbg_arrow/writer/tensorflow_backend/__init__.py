"""The TensorFlow backend: TensorFlow's own ops count tensors on the device where the tensors are.

This backend is for programs with a GPU. In the graphs that TensorFlow runs, the native core adds nodes that count
elements; `device_graphs()` makes these nodes. One copy for each call brings the counts to the host. `count_on_device()`
counts large eager tensors. For functions that XLA compiles, `compiled.py` makes the ops that count inside these
functions.

The native core measures all other tensors on the host: tensors in host memory, eager tensors of up to a million
elements, and tensors of dtypes that TensorFlow cannot compute with. In mode FULL_TENSOR, which keeps elements, the core
measures all tensors.

Counts on a device differ from those of the native backend. Subnormal numbers count as zeros, unless the setting
`exact_subnormals` is on. A NaN counts as an infinity if the first bit of its mantissa is not set. The tensors of a
graph are recorded together, once all of them are computed, so a call that raises an error may leave no rows.
"""
