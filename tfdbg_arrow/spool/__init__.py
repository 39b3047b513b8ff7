"""The spool, which holds recorded data that is not yet in sealed parts, and its conversion into tables.

The writer's sink converts the spool into parts while a program runs. The same code converts the spool of a dead
process.

* `records.py`: the events, batches of events as columns, and the recorded elements of tensors.
* `names.py`: resolves the numbers in records; `call_join.py`: assigns tensors to calls.
* `convert.py`: batches and rows -> tables.
* `circular_buffer.py`: chooses the events to keep if not all events are kept.
* `spool_file.py` and `journal.py`: the files, and the check whether the process that writes them is alive.
* `recovery.py`: converts the spool of a dead process into tables.
"""
