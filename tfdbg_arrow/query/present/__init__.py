"""What answers say, as blocks, and what shows blocks in notebooks and as plain text. `cli` shows them in a terminal.

* `blocks.py`: lines, facts, lists, tables and drawings.
* `tensors.py`: bad tensors, why they went bad, paths, and the history of tensors.
* `findings.py`: what alert rules found, and what a recording did not look at.
* `html.py`, `text.py`: show blocks.
* `answers.py`: the blocks of any answer.
"""
