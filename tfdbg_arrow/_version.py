"""The version of the package, and the versions of TensorFlow that can be recorded. The build reads this file."""

from __future__ import annotations

__version__ = "0.2.0"
SUPPORTED_TENSORFLOW = "2.18 to 2.21"
"""The versions of TensorFlow that can be recorded. `make matrix` tests these versions."""
