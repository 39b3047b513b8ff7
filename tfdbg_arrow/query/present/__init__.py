"""What answers say, as blocks, and what shows blocks in notebooks and as plain text. `cli` shows them in a terminal.

* `blocks.py`: lines, facts, tables and drawings.
* `tensors.py`: bad tensors, why they went bad, paths, and the history of tensors.
* `findings.py`: alerts, and coverage. `logdirs.py`: what a logdir holds, and its damage. `runs.py`: differences of two
  runs. `models.py`: layers, curves and distributions.
* `html.py`, `text.py`: show blocks.
* `answers.py`: the blocks of any answer.
"""
