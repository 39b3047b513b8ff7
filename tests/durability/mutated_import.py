"""A plugin of pytest: the mutated copy of the package is imported, not the one that an editable install points to."""

from __future__ import annotations

import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
