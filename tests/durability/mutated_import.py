"""A pytest plugin that imports the mutated copy of the package instead of the editable install."""

from __future__ import annotations

import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
