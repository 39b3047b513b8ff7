"""Alerts: rules in SQL over a recording. `builtin/` holds the rules, `rules` reads the rules, `findings` runs a rule.

`answer` runs all rules and groups their findings.

For large runs, digests show in which op outputs a rule can find anything (`candidates/`), and `scan` reads only these
outputs.
"""
