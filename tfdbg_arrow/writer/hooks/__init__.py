"""TensorFlow's private API: the only package that touches it.

A hook replaces one attribute of TensorFlow while a recording runs; each module says in a table which are its, and why.
`installation.py` puts them in place. Some stay for good: what they keep from TensorFlow's files, from XLA and from
other processes may outlive the recording.
"""
