"""Damage of a logdir: `doctor` explains it, `verify` finds every changed byte, `skip_broken` reads the sound parts."""
