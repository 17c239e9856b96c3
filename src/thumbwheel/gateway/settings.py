"""The section `gateway` of the settings: bounds, who may ask, what is recorded of whom."""

from __future__ import annotations

from pydantic import Field

from thumbwheel.core.config import Config


class Allowance(Config):
    """What an agent or a key may use. A call is refused once it is used up; a call that runs is
    never stopped for it."""

    requests_per_minute: int | None = Field(default=None, ge=1)
    """Calls in any minute; beyond them a call is answered with 429 [default: any number]"""
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Tokens of prompts and answers in a day (UTC); beyond them 402. Tokens that the model's server
    does not tell are counted by the text: one for three bytes [default: any number]"""
    cost_per_day: float | None = Field(default=None, gt=0)
    """Price of the calls of a day (UTC), by the prices of the versions that answered; beyond it
    402. Somebody else's version without a price is refused, one of this home costs nothing
    [default: any]"""


class AgentPolicy(Allowance):
    """How the calls of one agent are taken."""

    record: float = Field(default=1.0, ge=0, le=1)
    """Share of sessions that are recorded, each as a whole; a call without a session counts by
    itself"""
    fallback: tuple[str, ...] = ()
    """Versions or aliases that are asked, in this order, where the chosen one does not answer"""


class GatewayConfig(Config):
    """The recording gateway of `thumbwheel serve`."""

    max_body: int = Field(default=32 << 20, ge=1024)
    """Bytes of a request, unpacked; a larger one is answered with 413"""
    max_held: int = Field(default=1 << 30, ge=1024)
    """Bytes that the requests of all running calls may take in memory together, and three quarters
    of them those of one key or user; beyond them a call is answered with 429. One that runs alone
    is always taken"""
    connect: float = Field(default=5.0, gt=0)
    """Seconds in which a connection to an upstream has to be made"""
    silence: float = Field(default=600.0, gt=0)
    """Seconds in which an upstream has to send something, the first byte included"""
    longest: float = Field(default=3600.0, gt=0)
    """Seconds that a call may take altogether"""
    hosts: tuple[str, ...] = ()
    """Further host names under which the server may be asked, beside loopback's. A server that
    listens on all addresses takes any name where none is given here"""
    require_capture: bool = False
    """Whether a call that cannot be recorded is refused with 503, and each answer waits until it is
    on disk. By default a call never fails or waits for being recorded"""
    require_key: bool = False
    """Whether apps on this machine need a key too (thumbwheel keys add); those on other machines
    always do"""
    agents: dict[str, AgentPolicy] = Field(default_factory=dict)
    """By the name of the agent: what is recorded, what answers instead, what it may use"""
    keys: dict[str, Allowance] = Field(default_factory=dict)
    """By the name of the key (thumbwheel keys add NAME): what it may use"""

    def policy(self, agent: str) -> AgentPolicy:
        """Return the policy of an agent, or the default."""
        return self.agents.get(agent) or AgentPolicy()
