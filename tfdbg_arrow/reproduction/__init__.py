"""Scripts that reproduce a recorded bad value. Writing a script does not need TensorFlow.

The names below are imported on first use.

* `pieces.py`: finds the op that made the bad value, the ops before it, and the recorded inputs of these ops.
  `elements.py` reads the elements of the inputs.
* `op_signatures.py`: the ops that a script may run.
* `script.py`: the text of a script; `script_parts.py` has the parts that are the same in every script.
* `fixes.py`: repairs to try. `trial.py` runs scripts in a separate process: it tries repairs and shrinks inputs.
* `writing.py`: uses all these modules to write a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdbg_arrow.facade import lazy_names

if TYPE_CHECKING:
    from tfdbg_arrow.reproduction.writing import Repro as Repro
    from tfdbg_arrow.reproduction.writing import ReproInput as ReproInput
    from tfdbg_arrow.reproduction.writing import TriedFix as TriedFix
    from tfdbg_arrow.reproduction.writing import write_repro as write_repro

__getattr__, __dir__ = lazy_names(__name__)
