"""The TensorFlow backend: TensorFlow's own summary op measures, on the device where the tensor lives.

It serves programs with an accelerator visible, and installs without the native core. All tensors of a graph on one
device become one matrix of summaries (`summary.py`), which crosses to the host once a call and iteration:

* with the native core, into its op `TfdbgArrowRecordSummary`, which knows step, frame, iteration and call site;
* without it, into a Python function, which knows none of them (Flag.CONTEXT is unset).

Two sorts of tensors go to the host themselves: all of them in mode FULL_TENSOR, which keeps their elements, and
those of dtypes that TensorFlow cannot compute with.

What differs from the native backend: the tensors of a graph are recorded together, when the last of them is
there, so a call that raises leaves no rows of the graph that raised. `execution_index` is NULL while two calls that
could have made a tensor run at once: the memory of arguments is not looked at. With the native core a tensor of a
graph whose rank is not known beforehand and above 6 has its counts, but no shape and no size. Without the core
`step_id`, `frame_id`, `iteration` and `call_site` are NULL.

Tested on CPUs only. That it works on GPUs is by construction: every op it places there has a kernel there, by
TensorFlow's own sources; where not, soft placement runs it on the host.
"""
