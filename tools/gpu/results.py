"""What the checks found, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Result:
    """One thing that a check looked at.

    Attributes:
        item: What it is, such as the name of a program.
        is_right: Whether it is as it should be.
        told: What the check saw, in words.
        facts: The same as values for JSON.
    """

    item: str
    is_right: bool
    told: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The results of one check: its name, how long it took in seconds, and what it looked at; never empty."""

    check: str
    seconds: float
    results: tuple[Result, ...]

    @property
    def is_passed(self) -> bool:
        """Whether all is as it should be."""
        return all(result.is_right for result in self.results)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the checks ran. A field is None if it is not available.

    Attributes:
        device: Name of the GPU; None if TensorFlow sees none.
        driver: Version of NVIDIA's driver.
        tensorflow: Version of TensorFlow.
        cuda: Version of CUDA for which this TensorFlow was built; None if it was built without kernels for GPUs.
        python: Version of Python.
        num_cpus: Number of processor cores.
    """

    device: str | None
    driver: str | None
    tensorflow: str
    cuda: str | None
    python: str
    num_cpus: int | None
