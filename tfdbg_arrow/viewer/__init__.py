"""The viewer: pages that show a logdir, served on this machine or written as one file.

`pages/` contains one module per page, with a function that reads typed data from a logdir, and one template that shows
the data. Every page has a JSON twin with the same data. `server` serves the pages behind the checks of `security`;
`report` writes them as one file.
"""
