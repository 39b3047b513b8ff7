"""Structure: graphs as they were built, what is around an op, and how healthy it was."""
