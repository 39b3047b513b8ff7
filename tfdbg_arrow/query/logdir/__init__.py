"""An open logdir, as tables and views over its live parts."""
