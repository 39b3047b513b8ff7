"""Handles bad values as `on_nonfinite` asks: stops the program, or calls the user's callable.

The rules of `masking.py` decide which bad values matter. `stop.py` has the rest of the code. The decision is made at
three points:

* In graphs, the decision is made when a function is created: GraphJudge or the core decides for each tensor whether it
  stops the program. If the tensor is bad, its record op fails the step (`raise`) or notes the tensor (a callable).
* In eager code, the decision is made when an op takes a bad tensor. Before that, it is not known whether `tf.where`
  will select the value. EagerWatch keeps the IDs of bad tensors.
* At a boundary (a mark, a flush, the end of the recording), a bad tensor counts if no op has taken it.
"""
