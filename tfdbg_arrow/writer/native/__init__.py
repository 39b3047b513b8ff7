"""The compiled core `_core` and its readable NumPy twin `reference`."""
