"""The viewer: pages that show a logdir, served on this machine or written as one file.

`pages/` contains one module and one template per page. The module reads typed data from a logdir, and the template
shows the data. Every page is also available as JSON with the same data. `server` serves the pages behind the checks of
`security`; `report` writes pages as one file.
"""
