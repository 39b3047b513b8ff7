"""The viewer: pages over a logdir, served on this machine or written as one file.

`pages/` holds one module a page: a function that reads typed data out of a logdir, and beside it the template that
shows it. Every page has a JSON twin, made of the same data. `server` puts them behind `security`; `report` writes
them as one file.
"""
