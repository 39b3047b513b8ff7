"""Scripts that make a recorded bad value again. Writing a script needs no TensorFlow.

The names below are imported on first use.

* `pieces.py`: finds the op that made the bad value, the ops before it and their recorded inputs; `elements.py` reads
  the elements.
* `op_signatures.py`: the ops that a script may run.
* `script.py`: the text of a script; `script_parts.py` has the parts that are the same in every script.
* `fixes.py`: repairs to try. `trial.py` runs scripts in a process of its own: it tries repairs and shrinks inputs.
* `writing.py`: puts these together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdbg_arrow.facade import lazy_names

if TYPE_CHECKING:
    from tfdbg_arrow.reproduction.writing import Repro, ReproInput, TriedFix, write_repro

_NAMES_OF = {"tfdbg_arrow.reproduction.writing": ["Repro", "ReproInput", "TriedFix", "write_repro"]}

__all__ = ["Repro", "ReproInput", "TriedFix", "write_repro"]

__getattr__ = lazy_names(__name__, _NAMES_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
