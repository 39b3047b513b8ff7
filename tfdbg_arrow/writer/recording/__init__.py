"""One recording: what it is made of, what the hooks tell it, and what it tells the sink."""
