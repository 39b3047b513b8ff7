"""What the viewer's pages read: the graphs of a run, the neighbourhood of an op, and windows of rows."""
