"""Why an op made an infinity or a NaN, how to fix it, and whether its inputs had grown over the steps before.

* `explanation.py`: the answer, and the facts about an op that a rule uses.
* `kinds.py` and `linear.py`: the kinds of rule, with parameters. `rules.py`: the rule for each type of op.
* `explain.py`: looks up the rule. `explainer.py`: reads the facts for a rule from a recording.
* `growth.py`: finds tensors that grew from step to step until an op overflowed.
"""

from tfdbg_arrow.query.explanation.explain import explain
from tfdbg_arrow.query.explanation.explainer import Reasons, explain_event, read_reasons
from tfdbg_arrow.query.explanation.explanation import Computed, Explanation
from tfdbg_arrow.query.explanation.growth import Growth, find_growth

__all__ = ["Computed", "Explanation", "Growth", "Reasons", "explain", "explain_event", "find_growth", "read_reasons"]
