"""Hosts of one home whose blobs are in a bucket."""

from __future__ import annotations

import base64
from pathlib import Path

from thumbwheel.core.config import Home, Sources
from thumbwheel.db import cluster
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.bucket import Bucket, BucketAddress

KEY = base64.b64encode(bytes(range(32))).decode()


class Hosts:
    """The hosts of a home: a folder each, one database, one bucket."""

    def __init__(self, folder: Path, url: str, bucket: str) -> None:
        self.folder, self.address = folder, f"s3://{bucket}/home"
        self.variables = {
            "THUMBWHEEL_DATABASE": url,
            "THUMBWHEEL_CLUSTER_KEY": KEY,
            "THUMBWHEEL_BLOBS": self.address,
        }
        first = self.home("first")
        with Workspace.open(first, Sources({}, "none", {"THUMBWHEEL_DATABASE": url})):
            pass
        cluster.initialise(first, self.variables)
        self.join("second")

    def join(self, name: str) -> None:
        cluster.join(self.home(name), self.variables)

    def home(self, name: str) -> Home:
        return Home.at(self.folder / name)

    def opened(self, name: str) -> Workspace:
        return Workspace.open(self.home(name), Sources({}, "none", self.variables))

    @property
    def bucket(self) -> Bucket:
        return Bucket(BucketAddress.parse(self.address), 60)
