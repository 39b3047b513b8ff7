"""Data flow: which tensors an op took as inputs, across graphs, calls, loop iterations, variables and eager code.

`data_flow` is the entry point: it follows a recorded tensor back to the tensors that it was computed from. `graphs`,
`calls`, `eager` and `events` read the recorded data. `borders`, `callsites`, `sessions` and `variables` follow tensors
across borders. `origins` decides whether an op created a bad value.
"""
