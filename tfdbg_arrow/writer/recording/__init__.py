"""One recording: its parts, its observer for the hooks, and the rows that it passes to the sink."""
