"""Notices as an Atom feed (RFC 4287)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote
from xml.etree import ElementTree as ET

from thumbwheel.models.types import Agent
from thumbwheel.notify.types import Notice
from thumbwheel.report.formatting import legible

NAMESPACE = "http://www.w3.org/2005/Atom"
MEDIA_TYPE = "application/atom+xml"


def atom(agent: Agent, notices: Sequence[Notice], base: str, now: datetime) -> bytes:
    """Return the Atom feed of an agent's notices, newest first; links begin with `base`."""
    feed = ET.Element("feed", xmlns=NAMESPACE)
    updated = notices[0].occurred_at if notices else now
    _head(feed, f"Thumbwheel: {agent.slug}", f"urn:thumbwheel:{agent.slug}", updated)
    ET.SubElement(feed, "link", rel="alternate", href=f"{base}/agents/{agent.slug}")
    ET.SubElement(ET.SubElement(feed, "author"), "name").text = "Thumbwheel"
    for notice in notices:
        entry = ET.SubElement(feed, "entry")
        name = f"urn:thumbwheel:{agent.slug}:{quote(notice.key, safe='')}"
        _head(entry, notice.title, name, notice.occurred_at)
        ET.SubElement(entry, "category", term=notice.kind)
        ET.SubElement(entry, "link", rel="alternate", href=f"{base}{notice.path}")
        ET.SubElement(entry, "summary").text = legible(notice.text)
    return bytes(ET.tostring(feed, encoding="utf-8", xml_declaration=True))


def _head(element: ET.Element, title: str, name: str, updated: datetime) -> None:
    ET.SubElement(element, "title").text = legible(title)
    ET.SubElement(element, "id").text = name
    ET.SubElement(element, "updated").text = updated.isoformat()
