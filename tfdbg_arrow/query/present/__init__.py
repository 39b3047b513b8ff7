"""Turns answers into blocks, and shows blocks in notebooks and as plain text. `cli` shows blocks in a terminal.

* `blocks.py`: lines, facts, tables and drawings.
* `tensors.py`: bad tensors, why they went bad, paths, and the history of tensors.
* `findings.py`: alerts, and coverage. `logdirs.py`: the contents and the damage of a logdir. `runs.py`: differences
  between two runs. `models.py`: layers, curves and distributions.
* `html.py`, `text.py`: show blocks.
* `answers.py`: the blocks of any answer.
"""
