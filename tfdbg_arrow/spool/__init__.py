"""The spool, which holds recorded data that is not yet in sealed parts, and the conversion of the spool into tables.

The writer's sink converts the spool into parts while a program runs. The same code converts the spool of a dead
process.

* `records.py`: the events, batches of events as columns, and the recorded elements of tensors.
* `names.py`: resolves the numbers in records.
* `call_join.py`: assigns tensors to calls.
* `convert.py`: converts batches and rows into tables.
* `circular_buffer.py`: chooses the events to keep if not all events are kept.
* `spool_file.py` and `journal.py`: the files of the spool. `journal.py` also checks whether the writing process is
  alive.
* `recovery.py`: converts the spool of a dead process into tables.
"""
