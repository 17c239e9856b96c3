"""Which ratings a person lets count: by the tags that stand with them, and by how sure the app was
of what was rated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RatingFilter:
    """Everything counts by default."""

    tags: frozenset[str] = frozenset()
    """Only ratings with one of these; empty: any."""
    without: frozenset[str] = frozenset()
    """No ratings with one of these."""
    min_confidence: float | None = None
    """No ratings of what the app was less sure of. What has no confidence counts."""

    def __bool__(self) -> bool:
        return self != ALL_COUNT

    def objection(self, rating: Mapping[str, Any], confidence: Any) -> str | None:
        """Return why a rating does not count, or None if it does or if there is no rating."""
        if rating.get("rating") is None:
            return None
        tags = set()
        if isinstance(rating.get("tags"), list):
            tags = {tag for tag in rating["tags"] if isinstance(tag, str)}
        unwanted = sorted(tags & self.without)
        if unwanted:
            return f"its rating has the tag {unwanted[0]!r}"
        if self.tags and not tags & self.tags:
            return f"its rating has none of the tags {', '.join(sorted(self.tags))}"
        has_confidence = isinstance(confidence, int | float) and not isinstance(confidence, bool)
        if self.min_confidence is not None and has_confidence and confidence < self.min_confidence:
            return f"the confidence of what was rated is below {self.min_confidence:g}"
        return None


ALL_COUNT = RatingFilter()
