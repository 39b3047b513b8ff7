"""Structure: graphs as they were built, the neighbourhood of an op, and the health of its outputs."""
