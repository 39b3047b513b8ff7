"""Alerts: rules in SQL over a recording. `builtin/` holds the rules, `rules` reads the rules, `findings` runs a rule.

`answer` runs all rules and groups their findings.

For large runs, digests show which op outputs a rule can find (`candidates/`). `scan` then reads only these outputs.
"""
