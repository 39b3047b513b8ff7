"""An HTTP response, independent of the server that sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The response to a request, without the headers that `security` defines.

    Attributes:
        status: The HTTP status.
        content: The body.
        content_type: The value of the header Content-Type.
        headers: Further headers, with lower-case names.
    """

    status: int = 200
    content: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_text(
        cls, text: str, *, subtype: str = "plain", status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Returns an answer whose body is a text in UTF-8.

        Args:
            text: The text.
            subtype: The subtype of the content type, such as `html`.
            status: The HTTP status.
            headers: Further headers, with lower-case names.
        """
        return cls(
            status=status, content=text.encode(), content_type=f"text/{subtype}; charset=utf-8", headers=headers or {}
        )
