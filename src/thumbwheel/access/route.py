"""Where a command is in the HTTP API. The stages' `routes.py` list the routes of their commands;
the server (server/api) makes endpoints of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from thumbwheel.access.types import Verb

Method = Literal["GET", "POST", "PUT", "DELETE"]
AGENT = "/api/agents/{agent}"


@dataclass(frozen=True)
class Route:
    """A command over HTTP: the same parameters by the names of its options, and as the result what
    `--json` prints. Parameters that the path does not name are those of the query (GET, DELETE) or
    of a JSON body."""

    command: str
    """Its path on the command line: "models list"."""
    method: Method
    path: str
    need: Verb
    example: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of a request that makes sense."""
    local: tuple[str, ...] = ()
    """Options that name what is on the machine of the server, or where it should send something: a
    request never decides that. Options that are paths are left out without being listed."""
    by_row: bool = False
    """Whether the agent is that of the rows which the request is about, because the path names
    none; the need is then checked for each of them."""
    upload: str | None = None
    """The parameter that is a file: its content is the body, and the parameter is its name."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Options that name a folder to write into -> the folder of the home that it is; `{new}` in it
    is an id."""
    download: str | None = None
    """The option that names where the command writes a file or a folder, which is the answer."""
    gives: Mapping[str, str] = field(default_factory=dict)
    """Paths that go on with what this one gives -> where in its JSON result their last parameter
    is: {"/api/jobs/{job}": "/jobs/0/id"}."""
    flag: str | None = None
    """The flag that this request is the command with. Without it the command is another request,
    because it needs less."""
    state: str | None = None
    """The command whose result is what this one changes: its ETag is what If-Match compares."""

    further_needs: Mapping[str, Verb] = field(default_factory=dict)
    """Options that need another verb beside `need` where they are set."""
    in_name_of: str | None = None
    """The parameter that names who acts: a user who is logged in names nobody but themselves."""
    repeatable: bool = False
    """Whether a repeated request has no second effect: its idempotency key is not stored."""
    recorded: bool = True
    """Whether it writes the audit log. What raters say is a record itself."""

    @property
    def name(self) -> str:
        """The command, with its flag: "deployments stop"."""
        return f"{self.command} {self.flag}" if self.flag else self.command

    @property
    def operation(self) -> str:
        """The id of its operation: `models.list`."""
        return self.name.replace(" ", ".")
