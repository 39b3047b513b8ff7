"""A plugin of TensorBoard: the pages of the viewer in a tab, for the logdirs below TensorBoard's `--logdir`.

TensorBoard loads `plugin.py` when it starts. The viewer is loaded at the first request.
"""
