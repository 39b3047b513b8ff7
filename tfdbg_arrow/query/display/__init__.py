"""Data for the viewer's pages: the graphs of a run, the neighbourhood of an op, and windows of rows."""
