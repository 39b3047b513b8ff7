"""Damage of a logdir: `doctor` explains it, `verify` lists every changed byte, and `skip_broken` reads the rest."""
