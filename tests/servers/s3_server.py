"""An object storage for tests: moto's server in a process of its own, or the one that
THUMBWHEEL_TEST_S3 names (`s3://BUCKET/PREFIX`, with AWS's variables for the rest)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from tests.required import missing
from thumbwheel.llm.port import free_port

VARIABLE = "THUMBWHEEL_TEST_S3"
START_SECONDS = 60.0


class S3Server:
    """A moto server; every test has a bucket of its own."""

    def __init__(self) -> None:
        if find_spec("moto") is None or find_spec("obstore") is None:
            missing("s3", "moto and obstore are not installed: pip install -e '.[test]'")
        self.port = free_port()
        self._process = self._started()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process uses this server."""
        return environment_of(self.endpoint)

    def bucket(self, **settings: Any) -> str:
        """The name of a new bucket."""
        name = f"wheel-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name, **settings)
        return name

    @cached_property
    def client(self) -> Any:
        """A client that looks at the server beside ours."""
        return client_of(self.environment)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            try:
                self.client.list_buckets()
            except Exception:
                time.sleep(0.1)
            else:
                return process
        process.kill()
        raise RuntimeError("moto's server did not start")


def environment_of(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }


def client_of(environment: dict[str, str]) -> Any:
    import botocore.config
    import botocore.session

    return botocore.session.Session().create_client(
        "s3",
        region_name=environment["AWS_REGION"],
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=botocore.config.Config(
            s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}
        ),
    )


def named_store() -> str | None:
    """The address of the store that a person named."""
    return os.environ.get(VARIABLE)
