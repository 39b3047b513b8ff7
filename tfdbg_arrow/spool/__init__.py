"""What is recorded and not yet in sealed parts: files of records, names and rows, and what makes tables of them.

The writer's sink makes parts of them while a program runs; what a process left when it died is made into tables by the
same code.

* `records.py`: the events, `batch.py`: many of them as columns, `values.py`: the elements that tensors keep.
* `names.py`: what the numbers in records stand for, `graph_links.py`: the graphs' part of it.
* `call_join.py`: which call a tensor belongs to, `convert.py`: batches -> tables, `metadata_table.py`: rows -> a table.
* `ring.py` and `black_box.py`: which events stay where not all are kept.
* `spool_file.py`, `journal.py` and `run_files.py`: the files, and whether the process that made them is alive.
* `recovery.py`: what a dead process left, as tables, by the help of `journaled_names.py`.
"""
