"""Conversion of answers to JSON values."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any


def to_json(value: Any) -> Any:
    """Returns a value as a JSON value.

    A dataclass becomes an object with its attributes. A non-finite float becomes "NaN", "Infinity" or "-Infinity".
    Bytes become base64 text. Dates and times become ISO 8601 text, and a timedelta becomes seconds. Any other value
    becomes str(value).
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
