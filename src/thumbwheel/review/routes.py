"""The routes of the commands of rating queues."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

QUEUE = f"{AGENT}/queues/{{queue}}"
ITEM = f"{QUEUE}/items/{{item}}"

ROUTES = (
    Route(
        "queue create",
        "POST",
        f"{AGENT}/queues",
        "edit",
        {"name": "july", "overlap": 2, "order": "active", "labels": ["topic=billing|shipping"]},
    ),
    Route("queue list", "GET", f"{AGENT}/queues", "read"),
    Route("queue show", "GET", QUEUE, "read"),
    Route("queue raters", "GET", f"{QUEUE}/raters", "read"),
    Route("queue add", "POST", f"{QUEUE}/items", "edit", {"traces": ["trc_0f3k2m8v1"]}),
    Route("queue reorder", "POST", f"{QUEUE}/order", "rate", recorded=False),
    Route("queue close", "POST", f"{QUEUE}/closed", "edit"),
    Route(
        "queue next",
        "POST",
        f"{QUEUE}/next",
        "rate",
        {"rater": "anna", "limit": 5},
        in_name_of="rater",
        repeatable=True,
        recorded=False,
    ),
    Route(
        "queue return",
        "POST",
        f"{QUEUE}/returned",
        "rate",
        {"rater": "anna"},
        in_name_of="rater",
        recorded=False,
    ),
    Route(
        "queue rate",
        "POST",
        f"{ITEM}/rating",
        "rate",
        {"rater": "anna", "key": "k1", "thumb": "up"},
        in_name_of="rater",
        recorded=False,
    ),
    Route(
        "queue undo",
        "POST",
        f"{ITEM}/undone",
        "rate",
        {"rater": "anna", "key": "k2"},
        in_name_of="rater",
        recorded=False,
    ),
    Route(
        "queue approve-liked",
        "POST",
        f"{QUEUE}/gold",
        "edit",
        {"rater": "anna"},
        in_name_of="rater",
    ),
    Route(
        "queue approve",
        "POST",
        f"{ITEM}/gold",
        "edit",
        {"rater": "anna", "key": "k3", "reference": "42"},
        in_name_of="rater",
    ),
)
