"""Types of this stage: what is stored about a subject, and what an erasure did."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SubjectRows:
    """What is stored about a subject: row ids by table."""

    subjects: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    """Sessions that have no trace left."""
    traces: set[str] = field(default_factory=set)
    feedback: set[str] = field(default_factory=set)
    raters: set[str] = field(default_factory=set)
    """Raters that have said nothing else."""
    named_raters: set[str] = field(default_factory=set)
    senders: set[str] = field(default_factory=set)
    """Users of one of the names: what they sent for others goes too."""
    """Those of them that have the subject's name."""
    cases: set[str] = field(default_factory=set)
    messages: set[str] = field(default_factory=set)
    """Messages that only these traces and cases use."""
    mates: set[str] = field(default_factory=set)
    """Traces of others with the same prompt."""
    judged: set[str] = field(default_factory=set)
    """`mates`, and traces of others that the subject judged: their rewards may rest on what is
    erased, and are computed anew."""
    names: dict[str, set[str]] = field(default_factory=dict)
    """Kind (subject, session, trace, feedback, case, rater) -> their ids in the sources."""

    @property
    def ids(self) -> frozenset[str]:
        """The ids by which rows of datasets refer to these."""
        return frozenset(self.subjects | self.sessions | self.traces | self.feedback | self.cases)

    @property
    def counts(self) -> dict[str, int]:
        """Table -> rows."""
        tables = ("subjects", "sessions", "traces", "feedback", "raters", "cases", "messages")
        return {table: len(getattr(self, table)) for table in tables}


@dataclass
class Erasure:
    """What was erased, or would be. It holds no text of the subject, and no name but those of
    datasets, versions and files."""

    agent: str
    """Agent whose data it was."""
    state: str
    """planned, done, or already: it was done before and nothing has come since."""
    id: str | None = None
    """Id of the erasure; null for a dry run."""
    rows: dict[str, int] = field(default_factory=dict)
    """Table -> rows."""
    datasets: dict[str, dict[str, int]] = field(default_factory=dict)
    """Dataset id -> split -> rows that go."""
    files: dict[str, int] = field(default_factory=dict)
    """Kind of file -> how many were removed or rewritten."""
    tainted: dict[str, list[str]] = field(default_factory=dict)
    """Kind -> names."""
    retrain: list[str] = field(default_factory=list)
    """Commands that train what is tainted anew."""
    notes: list[str] = field(default_factory=list)
    """What a person still has to do."""
