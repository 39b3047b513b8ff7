"""What a recording does about bad values under `on_nonfinite`: stops the program, or calls the user's callable.

Which bad values matter is decided in three places, by the rules of `masking.py`:

* In graphs, when a function is made: `graph_judge.py` says of each tensor whether it stops the program. Its record op
  then fails the step (`raise`) or notes the tensor (a callable).
* In eager code, when an op takes a bad tensor: until then, `tf.where` may still leave the value out. `eager_watch.py`
  keeps the ids of bad tensors.
* At a boundary (a mark, a flush, the end of the recording) a bad tensor that no op has taken counts as it is.
"""
