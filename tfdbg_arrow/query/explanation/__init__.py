"""Why an op made an infinity or a NaN, what would mend it, and whether its inputs had grown over the steps before.

* `explanation.py`: what an answer is, and what is known of one op when a rule looks at it.
* `kinds.py` and `linear.py`: the kinds of rule, with parameters. `rules.py`: which rule holds for which type of op.
* `explain.py`: looks up the rule. `explainer.py`: reads what a rule needs from a recording.
* `growth.py`: what had grown from step to step until an op overflowed.
"""

from tfdbg_arrow.query.explanation.explain import explain
from tfdbg_arrow.query.explanation.explainer import Reasons, explain_event, read_reasons
from tfdbg_arrow.query.explanation.explanation import Computed, Explanation
from tfdbg_arrow.query.explanation.growth import Growth, find_growth

__all__ = ["Computed", "Explanation", "Growth", "Reasons", "explain", "explain_event", "find_growth", "read_reasons"]
