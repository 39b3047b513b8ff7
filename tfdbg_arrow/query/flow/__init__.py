"""Data flow: which tensors went into which, over the borders of graphs, calls, iterations, variables and eager code.

`data_flow` is the door: it goes from a recorded tensor to those that it was made of. `graphs`, `calls`, `eager` and
`events` read what was recorded; `borders`, `callsites`, `sessions` and `variables` lead over borders; `origins` judges
where a bad value came up.
"""
