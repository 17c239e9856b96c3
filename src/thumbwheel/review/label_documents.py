"""Finding what was fitted on people's labels besides model versions: classifiers, statements of how
far judges agree with people, and what users' next messages are worth.

They cannot be corrected in part. When labels are erased, whole documents are deleted together with
the scores of the classifiers, and made anew from the remaining labels. `erasure` decides when. To
add a kind of document, add it to KINDS.
"""

from __future__ import annotations

from collections.abc import Mapping

from thumbwheel.db.workspace import Workspace
from thumbwheel.models.documents import documents
from thumbwheel.review import agreement, learn
from thumbwheel.rewards import next_turn

KINDS: Mapping[str, str] = {
    "classifiers": learn.KIND,
    "judge_agreements": agreement.KIND,
    "calibrations": next_turn.KIND,
}
"""What they are called -> kind of document."""


def fitted_documents(ws: Workspace, agent: str) -> dict[str, set[str]]:
    """Return name of KINDS -> hashes of the agent's documents. Raises StorageError for a damaged
    one."""
    hashes: dict[str, set[str]] = {}
    for name, kind in KINDS.items():
        hashes[name] = {document.sha256 for document in documents(ws, kind, agent)}
    return hashes
