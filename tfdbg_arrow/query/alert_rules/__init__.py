"""Alerts: rules in SQL over a recording. `builtin/` holds the rules, `rules` reads them, `answer` runs them.

For many runs, `digests` determine in which op outputs a rule can find anything (`candidates/`), and `scan` reads only
these outputs.
"""
