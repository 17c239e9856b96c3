"""The groups `keys`, `users` and `audit`."""

from __future__ import annotations

from typing import Annotated

import typer

from thumbwheel.access.shown import (
    ShownAuditEntry,
    ShownAuditVerdict,
    ShownKey,
    ShownNewKey,
    ShownUser,
)
from thumbwheel.access.typed_password import typed_password
from thumbwheel.core import present

Name = Annotated[str, typer.Argument(help="Its name.")]
UserName = Annotated[str, typer.Argument(help="The user's name.")]
AgentOf = Annotated[str | None, typer.Option(help="For which agent (default: every one).")]

keys = typer.Typer(help="Keys by which apps and people use the server: make, list, revoke.")
users = typer.Typer(help="People who log in, and what they may: add, list, change, remove.")
audit = typer.Typer(help="Who did what: list it, and check that nothing was changed or left out.")


@keys.command("add")
def add_key(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="A name for it, for example mobile-app.")],
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Agents that it is for; may be repeated (default: every one)."),
    ] = None,
    verb: Annotated[
        list[str] | None,
        typer.Option(
            help="What it may: call, rate, read, edit, run, deploy, own; may be repeated "
            "(default: call and rate)."
        ),
    ] = None,
    days: Annotated[
        int | None, typer.Option(help="Days until it expires (default: never).")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="Whose it is: it goes with that user, and may at most what they may "
            "(default: the home's)."
        ),
    ] = None,
) -> present.Answer[ShownNewKey]:
    """Make a key and print it: once, because only a hash of it is stored.

    Apps send it as their API key, scripts as `Authorization: Bearer KEY`. What it may spend in a
    day is in the settings, `gateway.keys`, by its name.

    Example: thumbwheel keys add mobile-app --agent support --days 90
    """
    from thumbwheel.access import keys as verbs
    from thumbwheel.access.presented import new_key_answer

    with ctx.obj() as ws:
        new = verbs.add(ws, name, agents=agent or (), verbs=verb or (), days=days, user=user)
    return new_key_answer(new)


@keys.command("list")
def list_keys(ctx: typer.Context) -> present.Answer[list[ShownKey]]:
    """List the keys: how each begins, what it may do, until when, and when it was last used."""
    from thumbwheel.access import keys as verbs
    from thumbwheel.access.presented import keys_answer

    with ctx.obj() as ws:
        return keys_answer(verbs.listed(ws))


@keys.command("revoke")
def revoke_key(ctx: typer.Context, name: Name) -> present.Answer[ShownKey]:
    """Forget a key; a server lets nothing in by it any more, 50 ms later at most.

    Example: thumbwheel keys revoke mobile-app
    """
    from thumbwheel.access import keys as verbs
    from thumbwheel.access.presented import revoked_answer

    with ctx.obj() as ws:
        return revoked_answer(verbs.revoke(ws, name))


@users.command("add")
def add_user(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Their name, for example ann or ann@example.com.")],
    role: Annotated[
        str,
        typer.Option(
            help="viewer (read), rater (also rates), editor (also cases, gate, jobs) or owner "
            "(everything)."
        ),
    ] = "viewer",
    agent: AgentOf = None,
    by_provider: Annotated[
        bool,
        typer.Option(
            "--by-provider",
            help="They log in by the OIDC provider of the settings, under this name, and have no "
            "password.",
        ),
    ] = False,
) -> present.Answer[ShownUser]:
    """Add a user; the password comes from standard input, or is asked for.

    Example: thumbwheel users add ann --role rater --agent support
    """
    from thumbwheel.access import users as verbs
    from thumbwheel.access.presented import role_answer

    password = None if by_provider else typed_password(name)
    with ctx.obj() as ws:
        user = verbs.add(ws, name, password=password, role=role, agent=agent)
    return role_answer(user, role, agent)


@users.command("list")
def list_users(ctx: typer.Context) -> present.Answer[list[ShownUser]]:
    """List the users with their roles for each agent and how they log in."""
    from thumbwheel.access import users as verbs
    from thumbwheel.access.presented import users_answer

    with ctx.obj() as ws:
        return users_answer(verbs.listed(ws))


@users.command("role")
def set_role(
    ctx: typer.Context,
    name: UserName,
    role: Annotated[
        str, typer.Argument(help="viewer, rater, editor, owner; none takes the role away.")
    ],
    agent: AgentOf = None,
) -> present.Answer[ShownUser]:
    """Change what a user is for an agent; it holds for open sessions, too.

    Example: thumbwheel users role ann editor --agent support
    """
    from thumbwheel.access import users as verbs
    from thumbwheel.access.presented import role_answer

    with ctx.obj() as ws:
        user = verbs.set_role(ws, name, role, agent=agent)
    return role_answer(user, role, agent)


@users.command("password")
def set_password(ctx: typer.Context, name: UserName) -> present.Answer[ShownUser]:
    """Change a password, read from standard input or asked for; all sessions of the user end."""
    from thumbwheel.access import users as verbs
    from thumbwheel.access.presented import user_answer

    password = typed_password(name)
    with ctx.obj() as ws:
        user = verbs.set_password(ws, name, password)
    return user_answer(user, "has a new password")


@users.command("remove")
def remove_user(ctx: typer.Context, name: UserName) -> present.Answer[ShownUser]:
    """Remove a user with their roles, keys and sessions, which end at once.

    The audit log goes on to say what they did, by an id that leads to no name any more.
    """
    from thumbwheel.access import users as verbs
    from thumbwheel.access.presented import user_answer

    with ctx.obj() as ws:
        user = verbs.remove(ws, name)
    return user_answer(user, "is removed")


@audit.command("list")
def list_audit(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(help="At most so many rows.", min=1)] = 50,
    before: Annotated[
        int | None, typer.Option(help="Only rows with numbers below this one.")
    ] = None,
) -> present.Answer[list[ShownAuditEntry]]:
    """List who did what, newest first. `local` is whoever used the command line or the token of the
    home; a person without a name here was removed."""
    from thumbwheel.access.presented import audit_answer

    with ctx.obj() as ws:
        return audit_answer(ws, limit, before)


@audit.command("verify")
def verify_audit(ctx: typer.Context) -> present.Answer[ShownAuditVerdict]:
    """Check that the audit log is as it was written: each row is sealed together with the one
    before, and the newest is signed in a file of the home. Fails where a row was changed, moved or
    removed.
    """
    from thumbwheel.access import audit as verbs
    from thumbwheel.access.presented import verdict_answer

    with ctx.obj() as ws:
        verdict = verbs.verify(ws)
    return verdict_answer(verdict)
