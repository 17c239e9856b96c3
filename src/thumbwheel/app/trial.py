"""An experiment as the routing table asks it: who answers a call, of the arms that are deployed.

Composed of the assignment (experiments) and the deployments (deploy), which do not know each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from thumbwheel.core.errors import NotFound
from thumbwheel.experiments.assign import Assignment, Draw
from thumbwheel.experiments.exposures import OVERRIDE
from thumbwheel.experiments.types import Experiment
from thumbwheel.gateway.routing import Choice, ExperimentDraw, RoutingRequest, Upstream

ARM_HEADER = "x-thumbwheel-arm"
"""Header by which a client asks for an arm; such a call is recorded and never counted."""
REMEMBERED = 10_000
"""Newest calls whose user and session nested calls inherit."""


@dataclass
class CallLineage:
    """Whose call a trace was, so that a nested call, which names its parent only, gets the same
    arm."""

    owners: OrderedDict[str, tuple[str | None, str | None]] = field(default_factory=OrderedDict)

    def owner(self, request: RoutingRequest) -> tuple[str | None, str | None]:
        """Return (user, session) of a call; what it does not name comes from its parent. Either may
        be None."""
        user, session = request.subject, request.session
        if request.parent is not None and (user is None or session is None):
            parent_user, parent_session = self.owners.get(request.parent, (None, None))
            user, session = user or parent_user, session or parent_session
        if request.trace is not None and (user or session):
            self.owners[request.trace] = (user, session)
            if len(self.owners) > REMEMBERED:
                self.owners.popitem(last=False)
        return user, session


@dataclass(frozen=True)
class Trial:
    """A running experiment with the choice that each of its arms stands for."""

    assignment: Assignment
    probabilities: Mapping[str, float]
    choices: Mapping[str, Choice]
    """Arm -> the choice; an arm that answers nowhere is missing."""
    control: Choice
    """Who answers where no arm does: what the alias points at."""
    lineage: CallLineage

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        control: Choice,
        upstreams: Mapping[str, Upstream],
        lineage: CallLineage,
    ) -> Trial:
        """Build the trial of an experiment. `upstreams`: arm -> upstream; `control`: the alias's
        own choice."""
        shares = experiment.stratum.shares
        total = sum(shares.values())
        probabilities = {name: share / total for name, share in shares.items()}
        choices = {}
        for name, upstream in upstreams.items():
            # Nobody has to suffer for an arm that dies.
            others = [control.upstream, *control.fallbacks]
            choices[name] = Choice(
                version=upstream.version,
                deployment=upstream.deployment,
                upstream=upstream,
                arm=name,
                probabilities=probabilities,
                reason=f"experiment {experiment.id}",
                fallbacks=tuple(
                    other for other in others if other.deployment != upstream.deployment
                ),
            )
        assignment = Assignment.of(experiment)
        return cls(assignment, probabilities, choices, control, lineage)

    def choose(self, request: RoutingRequest) -> Choice:
        """Return the choice of who answers a call. Raises NotFound if the client asks for an
        unknown arm."""
        user, session = self.lineage.owner(request)
        if (wanted := request.headers.get(ARM_HEADER)) is not None:
            return self._override(wanted)
        draw = self.assignment.draw(user if self.assignment.unit == "user" else session)
        if draw.arm is None:
            return self._uncounted(draw, draw.reason)
        choice = self.choices.get(draw.arm)
        if choice is None:
            choice = self._uncounted(draw, f"fallback: arm {draw.arm} answers nowhere")
            return replace(choice, is_fallback=True)
        return replace(choice, draw=self._drawn(draw))

    def _drawn(self, draw: Draw) -> ExperimentDraw:
        assignment = self.assignment
        return ExperimentDraw(assignment.experiment, assignment.stratum, draw.unit, draw.arm)

    def _uncounted(self, draw: Draw, why: str) -> Choice:
        """Return the alias's own choice, for a call that does not count for any arm."""
        return replace(
            self.control,
            probabilities=self.probabilities,
            draw=self._drawn(draw),
            reason=f"experiment {self.assignment.experiment}: {why}",
        )

    def _override(self, wanted: str) -> Choice:
        choice = self.choices.get(wanted)
        if choice is None:
            raise NotFound(
                f"arm {wanted[:200]!r}",
                f"experiment {self.assignment.experiment} has no arm of that name that answers",
                f"Known: {', '.join(self.choices)}",
            )
        draw = ExperimentDraw(self.assignment.experiment, self.assignment.stratum, None, None)
        return replace(
            choice, arm=None, draw=draw, reason=f"{OVERRIDE}: the client asked for {wanted}"
        )
