"""Makes `python -m tfdbg_arrow` the same as `tfdbg-arrow`."""

from __future__ import annotations

from tfdbg_arrow.cli import main

if __name__ == "__main__":
    main()
