"""Alerts: rules in SQL over a recording. `builtin/` holds the rules, `rules` reads them, `answer` runs them.

Over many runs, `digests` tell in which op outputs a rule can find anything (`candidates/`), and `scan` reads these.
"""
