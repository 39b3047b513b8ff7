"""The hooks into TensorFlow. No other package replaces attributes of TensorFlow.

A hook replaces one attribute of TensorFlow while a recording runs. Each module has a table of its hooks and their
purpose. `installation.py` installs them. Some hooks are permanent, because functions with our ops may outlive the
recording, and must not get into files or other processes.
"""
