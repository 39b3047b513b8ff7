"""The results of the checks, and the machine on which they ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result for one item of a check.

    Attributes:
        item: The item, such as the name of a program.
        is_right: Whether the item is as expected.
        told: The observation, as text for people.
        facts: The observation, as values for JSON.
    """

    item: str
    is_right: bool
    told: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The results of one check: its name, its duration in seconds, and the result for each of its items."""

    check: str
    seconds: float
    results: tuple[Result, ...]

    @property
    def is_passed(self) -> bool:
        """Whether all results are right."""
        return all(result.is_right for result in self.results)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine on which the checks ran. A field is None if it is not available.

    Attributes:
        device: Name of the GPU. None if TensorFlow sees no GPU.
        driver: Version of NVIDIA's driver.
        tensorflow: Version of TensorFlow.
        cuda: Version of CUDA for which this TensorFlow was built. None if TensorFlow was built without kernels for
            GPUs.
        python: Version of Python.
        num_cpus: Number of processor cores.
    """

    device: str | None
    driver: str | None
    tensorflow: str
    cuda: str | None
    python: str
    num_cpus: int | None
