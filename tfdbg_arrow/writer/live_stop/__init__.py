"""Handles bad values as `on_nonfinite` asks: stops the program, or calls the user's callable.

Three places decide which bad values matter, by the rules of `masking.py`. `stop.py` holds the rest:

* In graphs, the decision is made when a function is created: GraphJudge or the core decides for each tensor whether it
  stops the program. Its record op then fails the step (`raise`) or notes the tensor (a callable).
* In eager code, the decision is made when an op takes a bad tensor. Until then, `tf.where` may still not select the
  value. EagerWatch keeps the IDs of bad tensors.
* At a boundary (a mark, a flush, the end of the recording), a bad tensor counts if no op has taken it.
"""
