"""The verbs about tokens by which others push to this workspace: keys token new, list, revoke."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from odf_engine.workspace.tokens import ALL_DATASETS, Token, Tokens
from odf_tui.cli.output import common_options, open_workspace, options_of, print_json, print_table, say, verb
from odf_tui.humane import moment


@click.group("token", epilog="Example:  odf keys token new nightly --dataset 'weather.%' --days 90")
@common_options
def token_verb() -> None:
    """Tokens by which others push to this workspace, while `odf serve --allow-push` runs."""


@verb("new", example="odf keys token new nightly --dataset 'weather.%' --days 90", json=True)
@click.argument("name")
@click.option(
    "--dataset", "patterns", multiple=True, metavar="PATTERN", help="What may be pushed; again for more."
)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="How long it is good for.")
def new_token(name: str, patterns: tuple[str, ...], days: float | None) -> None:
    """Makes a token and prints it, this once: only its hash is kept.

    It is good for the datasets that match one of the patterns (ids, names, names with %), by default
    for all; until it is revoked, or for so many days. Who has it says: odf repo login URL
    """
    token, text = _tokens().create(name, patterns or (ALL_DATASETS,), days)
    if options_of().json:
        print_json({**_facts(token), "token": text})
        return
    sys.stdout.write(text + "\n")
    until = "until it is revoked" if token.expires is None else f"until {moment(_text(token.expires))}"
    say(f"token '{name}' may push {', '.join(token.datasets)} {until}; it is not shown again")


@verb("list", example="odf keys token list", json=True)
def list_tokens() -> None:
    """Lists the tokens: what each may push, since when, until when, and when it was used last."""
    found = _tokens().list_tokens()
    if options_of().json:
        print_json([_facts(token) for token in found])
        return
    if not found:
        say("there are no tokens: odf keys token new NAME makes one")
        return
    print_table(
        ["token", "may push", "made", "expires", "last used"],
        [
            [
                token.name,
                ", ".join(token.datasets),
                moment(_text(token.created)),
                "expired" if token.has_expired else moment(_text(token.expires)) or "never",
                moment(_text(token.last_used)) or "never",
            ]
            for token in found
        ],
    )


@verb("revoke", example="odf keys token revoke nightly")
@click.argument("name")
def revoke_token(name: str) -> None:
    """Takes a token away; a server that runs refuses it from now on."""
    token = _tokens().revoke(name)
    say(f"token '{token.name}' is good for nothing any more")


token_verb.add_command(new_token)
token_verb.add_command(list_tokens)
token_verb.add_command(revoke_token)


def _tokens() -> Tokens:
    return Tokens(open_workspace().odf)


def _facts(token: Token) -> dict[str, object]:
    return {
        "name": token.name,
        "datasets": list(token.datasets),
        "created": _text(token.created),
        "expires": _text(token.expires),
        "last_used": _text(token.last_used),
        "expired": token.has_expired,
    }


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.strftime("%Y-%m-%dT%H:%M:%SZ")
