"""The package's version, said once: the build reads it from here, and so does `tfdbg_arrow.__version__`."""

from __future__ import annotations

__version__ = "0.2.0"
