"""The spool, which holds recorded data that is not yet in sealed parts, and its conversion into tables.

The writer's sink converts the spool into parts while a program runs. The same code converts the spool that a dead
process left.

* `records.py`: the events; `batch.py`: batches of events as columns; `values.py`: the recorded elements of tensors.
* `names.py`: resolves the numbers in records; `graph_links.py`: resolves those of graphs.
* `call_join.py`: assigns tensors to calls; `convert.py`: batches -> tables; `metadata_table.py`: rows -> a table.
* `ring.py` and `black_box.py`: choose the events to keep if not all are kept.
* `spool_file.py`, `journal.py` and `run_files.py`: the files, and the check whether their process is alive.
* `recovery.py`: converts the spool of a dead process into tables, using `journaled_names.py`.
"""
