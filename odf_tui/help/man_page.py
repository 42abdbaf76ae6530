"""Writes the man page odf(1) in roff, from the descriptions of the commands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Final

import click

from odf_tui.help.commands import describe_commands, describe_shared_options
from odf_tui.help.pages import TOPICS

EXIT_CODES: Final = (
    ("0", "Success."),
    ("1", "The command failed. The message has the reason, and a hint."),
    ("2", "Invalid arguments."),
    ("3", "A verification, or odf fsck, found problems."),
    ("4", "Conflict: another process moved the head, or histories diverged."),
    ("130", "Cancelled."),
)
ENVIRONMENT: Final = (
    ("ODF_WORKSPACE", "The workspace, unless -w is used."),
    ("JAVA_HOME", "The Java runtime for Spark, version 17 to 25."),
    ("VISUAL, EDITOR", "The editor for definitions in the workstation."),
    ("NO_COLOR", "Disables colours."),
    ("XDG_CONFIG_HOME", "The folder of the user's configuration; by default ~/.config."),
    ("https_proxy, http_proxy, ftp_proxy, no_proxy", "Proxies for sources and repositories."),
    ("SSL_CERT_FILE", "Certificates, instead of those of the system."),
    ("AWS_REGION, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY", "Access to S3."),
    ("GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT", "Access to Google Cloud Storage."),
    ("AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY", "Access to Azure Blob Storage."),
)
FILES: Final = (
    (".odf/", "A workspace: datasets, private keys, settings, jobs and caches."),
    (".odf/config.yaml", "Settings of the workspace."),
    ("~/.config/odf/config.yaml", "Settings of all workspaces of the user."),
    ("~/.config/odf/workspaces/", "Settings that are not read from a workspace."),
    ("~/.config/odf/keys.yaml", "Keys of the workstation."),
    ("~/.config/odf/themes/", "Themes of the user."),
)
EXAMPLES: Final = (
    ("Create a workspace with sample data, and open it:", "odf demo"),
    ("Create a dataset from a manifest, and pull it:", "odf add cases.yaml && odf pull my.cases"),
    ("Query datasets:", 'odf sql "SELECT area, sum(cases) FROM my.cases GROUP BY area"'),
    ("Verify all datasets:", "odf verify --all"),
    ("Pull a dataset from a server:", "odf pull odf+https://data.example.com/my.cases/"),
)


def man_page(root: click.Group) -> str:
    """Return the man page. It has no date, so the same program writes the same page."""
    from importlib.metadata import version  # slow to import

    lines = [
        f'.TH ODF 1 "" "odf-workstation {version("odf-workstation")}" "User Commands"',
        ".nh",
        ".ad l",
        *_section("NAME"),
        r"odf \- terminal workstation and engine for Open Data Fabric",
        *_section("SYNOPSIS"),
        ".B odf",
        *_paragraph("[OPTIONS] [COMMAND [ARGS]...]"),
        *_section("DESCRIPTION"),
        *_paragraph(
            "odf manages datasets of Open Data Fabric. A dataset is an append-only stream of rows with a "
            "hash-linked history. odf ingests data into root datasets, derives datasets with Spark SQL, "
            "verifies them, and exchanges them with repositories. Without a command, odf opens the "
            "workstation on the workspace of the current folder."
        ),
        ".PP",
        *_paragraph("odf help shows pages on these topics: " + ", ".join(TOPICS) + "."),
        *_section("OPTIONS"),
        *_paragraph(
            "All commands have these options, except --version. They can be before or after its name."
        ),
        *_definitions(describe_shared_options(root)),
        *_section("COMMANDS"),
    ]
    for description in describe_commands(root):
        name = _escape(description.name)
        lines += [f".SS {name}", f".B {name}", *_paragraph(description.usage)]
        for paragraph in description.paragraphs:
            fixed = paragraph.startswith("\b")
            body = paragraph.removeprefix("\b").strip("\n")
            lines += [".PP", *(_literal(textwrap.dedent(body)) if fixed else _paragraph(body))]
        lines += _definitions(description.options)
        if description.example:
            lines += [".PP", "Example:", *_literal(description.example)]
    lines += [*_section("EXIT STATUS"), *_definitions(EXIT_CODES)]
    lines += [*_section("ENVIRONMENT"), *_definitions(ENVIRONMENT)]
    lines += [*_section("FILES"), *_definitions(FILES)]
    lines += _section("EXAMPLES")
    for title, command in EXAMPLES:
        lines += [".PP", _escape(title), *_literal(command)]
    lines += [*_section("SEE ALSO"), *_paragraph("odf help TOPIC, odf help commands")]
    return "\n".join(lines) + "\n"


def _section(title: str) -> list[str]:
    return [f".SH {title}"]


def _paragraph(text: str) -> list[str]:
    """Return filled text. Code in backquotes is bold."""
    plain = _escape(" ".join(text.split()))
    return [re.sub(r"\\\(ga(.+?)\\\(ga", r"\\fB\1\\fR", plain)]


def _literal(text: str) -> list[str]:
    return [".PP", ".RS 4", ".nf", *map(_escape, text.splitlines()), ".fi", ".RE"]


def _definitions(items: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    for name, text in items:
        lines += [".TP", f"\\fB{_escape(name)}\\fR", *_paragraph(text)]
    return lines


_ESCAPES: Final = str.maketrans(
    {
        "\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", "…": "...",
        "\N{RIGHT SINGLE QUOTATION MARK}": r"\(aq", "→": r"\(->", "×": r"\(mu", "·": r"\(pc",
    }
)  # fmt: skip


def _escape(text: str) -> str:
    """Escape a line for roff. A dot at its start would be a request."""
    escaped = text.translate(_ESCAPES)
    escaped = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in escaped)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
