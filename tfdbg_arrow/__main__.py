"""`python -m tfdbg_arrow` is `tfdbg-arrow`."""

from __future__ import annotations

from tfdbg_arrow.cli import main

if __name__ == "__main__":
    main()
