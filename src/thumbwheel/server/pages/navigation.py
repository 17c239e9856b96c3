"""The navigation of a page: what whoever looks may open, by agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thumbwheel.access.types import VERBS, Principal
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import agents
from thumbwheel.server.pages.page import Page, PageRequest
from thumbwheel.server.pages.page_table import PAGES

ACTIONS = {"train": "Train a model", "experiment-start": "Start an experiment"}
"""Page without a place in the menu -> what is begun there."""


@dataclass(frozen=True)
class NavigationLink:
    """A link of the navigation."""

    name: str
    label: str
    url: str
    is_current: bool
    waiting: int = 0
    """Things there that wait for whoever looks."""


@dataclass(frozen=True)
class Navigation:
    """The links of one page."""

    agent: str | None
    """The slug of the agent whose pages are listed."""
    current: str | None
    """That of the page itself, where it belongs to one."""
    agents: Sequence[NavigationLink]
    of_agent: Sequence[NavigationLink]
    of_home: Sequence[NavigationLink]
    who: str
    actions: Sequence[NavigationLink] = ()
    """Pages on which something of the agent is begun; other pages lead there."""
    waiting: int = 0
    """Things of the agent that wait for whoever looks."""

    @property
    def palette(self) -> list[dict[str, str]]:
        """The actions as the command palette reads them."""
        return [{"label": link.label, "url": link.url} for link in self.actions]

    @classmethod
    def of(cls, asked: PageRequest, page: Page | None) -> Navigation:
        """Return the navigation with the pages that the principal may open."""
        principal = asked.principal
        slugs = [agent.slug for agent in agents(asked.ws) if principal.may("read", agent.slug)]
        current = asked.parts.get("agent")
        agent = current if current in slugs else next(iter(slugs), None)
        section = None if page is None else page.below or page.name
        menu = [page for page in PAGES if page.menu is not None]
        of_agent = [page for page in menu if page.is_of_agent]
        of_home = [page for page in menu if not page.is_of_agent]
        waiting = _waiting(asked, agent) if agent else {}
        return cls(
            agent=agent,
            current=current,
            agents=_agent_entries(slugs, current, section, of_agent),
            of_agent=_entries(of_agent, principal, agent, section, waiting) if agent else [],
            of_home=_entries(of_home, principal, None, section, waiting),
            who=principal.name,
            actions=_actions(principal, agent) if agent else [],
            waiting=waiting.get("overview", 0),
        )


def _waiting(asked: PageRequest, slug: str) -> dict[str, int]:
    """Return page name -> number of things there that wait for this principal, counting only those
    that the principal may settle. The overview has the sum."""
    waits = asked.waiting_of(Agent.named(slug))
    may = {verb for verb in VERBS if asked.principal.may(verb, slug)}
    counts = {
        "loop": len(waits.decisions) * ("decide" in may) + len(waits.held) * ("edit" in may),
        "rate": len(waits.queues) * ("rate" in may),
        "deployments": len(waits.dead) * ("deploy" in may),
        "jobs": len(waits.failed) * ("run" in may),
    }
    return counts | {"overview": sum(counts.values())}


def _entries(
    pages: Iterable[Page],
    principal: Principal,
    agent: str | None,
    section: str | None,
    waiting: Mapping[str, int],
) -> list[NavigationLink]:
    entries = []
    for page in pages:
        if _may_open(principal, page, agent):
            label = page.menu or page.title
            is_current = page.name == section
            count = waiting.get(page.name, 0)
            entries.append(
                NavigationLink(page.name, label, page.url(agent=agent), is_current, count)
            )
    return entries


def _actions(principal: Principal, agent: str) -> list[NavigationLink]:
    links = []
    for page in PAGES:
        label = ACTIONS.get(page.name)
        if label is not None and _may_open(principal, page, agent):
            links.append(NavigationLink(page.name, label, page.url(agent=agent), is_current=False))
    return links


def _may_open(principal: Principal, page: Page, agent: str | None) -> bool:
    if page.need is None:
        return True
    if page.by_row:
        return principal.may_somewhere(page.need)
    return principal.may(page.need, agent)


def _agent_entries(
    slugs: Iterable[str], current: str | None, section: str | None, pages: Sequence[Page]
) -> list[NavigationLink]:
    """Return an entry for each agent, which leads to the page of it that corresponds to the current
    one, or else to the first page."""
    target = next((page for page in pages if page.name == section), pages[0] if pages else None)
    if target is None:
        return []
    return [NavigationLink(slug, slug, target.url(agent=slug), slug == current) for slug in slugs]
