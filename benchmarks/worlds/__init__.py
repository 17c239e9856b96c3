"""Worlds in which learning is measured.

The seeds on which defaults are chosen and those on which they are proved are apart (`tune` and
`prove` of each world). They were written down before anything was tuned on them.
"""

from __future__ import annotations

from worlds.assistant import Assistant
from worlds.choice import Choice
from worlds.desk import Desk
from worlds.extract import Extract
from worlds.mail import MailWorld
from worlds.router import Router
from worlds.sums import Sums
from worlds.support import Support
from worlds.tone import Tone
from worlds.world import World

WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        MailWorld(),
        Desk(),
        Assistant(),
        Choice(),
        Sums(),
        Router(),
        Extract(),
        Support(),
        Tone(),
    )
}
