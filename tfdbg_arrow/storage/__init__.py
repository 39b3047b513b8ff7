"""How a logdir lies on a disk or at a URL.

* `layout.py`: names and paths; `marker.py`: what makes a directory a logdir; `manifest.py`: which parts are live.
* `part_files.py`: the files of parts; `disk.py`: operations on local files; `location.py`: directories at URLs.
* `retries.py`: repeats actions after temporary errors.
"""
