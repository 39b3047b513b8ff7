"""Stores logdirs on a disk or at a URL.

* `layout.py`: the names and paths of files.
* `marker.py`: the file that marks a directory as a logdir.
* `manifest.py`: the lists of live parts.
* `part_files.py`: the files of parts.
* `disk.py`: operations on local files.
* `location.py`: directories at URLs.
* `search.py`: finds the logdirs below a directory.
* `retries.py`: repeats actions after temporary errors.
"""
