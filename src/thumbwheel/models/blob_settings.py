"""Settings of where the blobs of a home are, and of the cache on this host."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from thumbwheel.core.config import Config


class BlobsConfig(Config):
    """Where datasets, adapters and documents are."""

    value_field: ClassVar[str | None] = "location"

    location: str | None = None
    """s3://BUCKET/PREFIX; by default the folder `blobs` of the home. `blobs: s3://BUCKET/PREFIX`
    is short for it."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that one request to the object storage may take."""


class CacheConfig(Config):
    """What this host has of files that it can fetch again."""

    blobs_gb: Annotated[float, Field(ge=0)] = 20.0
    """Gigabytes of blobs of a bucket. Files that are in use stay, beyond it too."""
