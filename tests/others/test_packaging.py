"""What is shipped for containers, as the tools of the field read it: hadolint, Docker Compose,
Helm, and the schemas of Kubernetes. No container runs here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.others.environments import peer_environment
from tests.others.peer_server import output_of

pytestmark = [pytest.mark.peers, pytest.mark.slow]
PACKAGING = Path(__file__).parents[2] / "packaging"
CHART = PACKAGING / "helm" / "thumbwheel"
VALUES: list[dict[str, Any]] = [
    {},
    {
        "image": {"repository": "wheel", "digest": f"sha256:{'0' * 64}"},
        "database": {"existingSecret": "rows"},
        "volume": {"existingClaim": "home"},
        "env": [{"name": "OPENAI", "valueFrom": {"secretKeyRef": {"name": "k", "key": "k"}}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"disk": "fast"},
    },
    {
        "replicas": 3,
        "database": {"existingSecret": "rows"},
        "cluster": {"existingSecret": "seal"},
        "settings": {"capture": {"acknowledge": "rows"}},
    },
]


def test_the_dockerfile() -> None:
    hadolint = peer_environment("packaging") / "hadolint"
    subprocess.run([hadolint, PACKAGING / "Dockerfile"], check=True)


def test_compose() -> None:
    compose = [peer_environment("packaging") / "docker-compose", "-f", PACKAGING / "compose.yaml"]
    environment = os.environ | {"POSTGRES_PASSWORD": "chosen"}
    text = subprocess.run(
        [*compose, "config", "--format", "json"], env=environment, capture_output=True, check=True
    ).stdout
    server = json.loads(text)["services"]["server"]
    assert server["environment"]["THUMBWHEEL_DATABASE"].startswith("postgresql://")
    assert server["ports"][0]["host_ip"] == "127.0.0.1"
    refused = subprocess.run([*compose, "config", "-q"], capture_output=True, check=False)
    assert b"choose one" in refused.stderr


@pytest.mark.parametrize("values", VALUES, ids=["defaults", "all", "three hosts"])
def test_the_chart(values: dict[str, Any], tmp_path: Path) -> None:
    programs = peer_environment("packaging")
    rendered = output_of(
        programs / "python", "render_chart.py", str(CHART), json.dumps(values), folder=tmp_path
    )
    assert rendered["errors"] == []
    kinds = []
    for name, manifest in rendered["manifests"].items():
        file = tmp_path / Path(name).name
        file.write_text(manifest)
        subprocess.run([programs / "kubernetes-validate", "--strict", file], check=True)
        kinds.append(yaml.safe_load(manifest)["kind"])
    assert sorted(kinds) == ["ConfigMap", "Service", "StatefulSet"]


def test_a_value_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    python = peer_environment("packaging") / "python"
    with pytest.raises(Exception, match="additional"):
        output_of(python, "render_chart.py", str(CHART), '{"servers": 3}', folder=tmp_path)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            {"database": {"existingSecret": "rows"}},
            "more than one pod needs database.existingSecret",
        ),
        (
            {
                "database": {"existingSecret": "rows"},
                "cluster": {"existingSecret": "seal"},
                "volume": {"existingClaim": "home"},
            },
            "each of several pods needs a volume of its own",
        ),
    ],
    ids=["no key of a cluster", "one volume for all"],
)
def test_several_pods_that_could_not_share_a_home(
    values: dict[str, Any], why: str, tmp_path: Path
) -> None:
    python = peer_environment("packaging") / "python"
    text = json.dumps({"replicas": 3} | values)
    with pytest.raises(Exception, match=why):
        output_of(python, "render_chart.py", str(CHART), text, folder=tmp_path)
