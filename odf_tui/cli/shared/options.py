"""Declares commands and groups, their shared options, and types of arguments that a shell completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

import odf_engine
from odf_engine import api
from odf_engine.errors import OdfError, UsageError, has_surrogates

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from odf_engine.api.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Options:
    """The options of all commands, given before or after the name of the command."""

    workspace: Path | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False


def options_of(ctx: click.Context | None = None) -> Options:
    """Return the options of the running command."""
    ctx = ctx or click.get_current_context()
    root = ctx.find_root()
    if not isinstance(root.obj, Options):
        root.obj = Options()
    return root.obj


def _shared_option(field: str, *names: str, **settings: Any) -> Callable[[F], F]:
    """Return a decorator that adds an option whose value is stored in a field of the options."""

    def store(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        if value:
            setattr(options_of(ctx), field, value)
        return value

    return click.option(*names, expose_value=False, callback=store, **settings)


_COMMON_OPTIONS = (
    _shared_option(
        "workspace",
        "-w",
        "--workspace",
        type=click.Path(path_type=Path),
        help="Workspace folder. Default: $ODF_WORKSPACE, else the nearest parent folder with one.",
    ),
    _shared_option(
        "quiet", "-q", "--quiet", is_flag=True, help="Quiet output: only requested data, problems and errors."
    ),
    _shared_option("verbose", "-v", "--verbose", is_flag=True, help="Verbose output."),
    _shared_option("no_color", "--no-color", is_flag=True, help="Output without colours."),
)
_json_option = _shared_option(
    "json", "--json", "as_json", is_flag=True, help="Print one JSON document to stdout."
)


def common_options(function: F) -> F:
    """Add ``-w``, ``-q``, ``-v`` and ``--no-color`` to a command."""
    for option in reversed(_COMMON_OPTIONS):  # click lists them in reverse order
        function = option(function)
    return function


def _split_names(params: dict[str, Any]) -> None:
    """Split names such as ``my.cases@review`` into the name and the value of ``--branch``."""
    for key in params.keys() & {"name", "names"}:
        value: str | tuple[str, ...] | None = params[key]
        names = (value,) if isinstance(value, str) else value or ()
        parts = [(name, "", "") if _is_url(name) else name.partition("@") for name in names]
        branches = {branch for _, _, branch in parts}
        if branches <= {""}:
            continue
        if len(branches | ({params["branch"]} - {""})) > 1:
            raise UsageError(
                "the datasets have different branches", hint="run the command for each branch separately"
            )
        params["branch"] = branches.pop()
        split = tuple(name for name, _, _ in parts)
        params[key] = split[0] if isinstance(value, str) else split


def _is_url(name: str) -> bool:
    return ":" in name and not name.startswith("did:")


class _Utf8Command(click.Command):
    """A command whose arguments must be UTF-8 text; only file names (``click.Path``) may be other bytes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if any(isinstance(param, click.Option) and param.name == "branch" for param in self.params):
            _split_names(ctx.params)
        for param in self.params:
            if isinstance(param.type, click.types.StringParamType):
                value = ctx.params.get(param.name or "")
                for text in value if isinstance(value, tuple) else (value,):
                    if text is not None and has_surrogates(text):
                        raise UsageError(f"{param.get_error_hint(ctx)} is not UTF-8 text: {text!r}")
        return rest


def define_command(
    name: str, *, example: str, help: str | None = None, json: bool = False
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command of a function.

    Args:
        example: shown at the end of the help.
        help: the help; by default, the docstring of the function.
        json: whether the command has ``--json``.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        # click lists options in the reverse order of their decorators: the function's own come first.
        own: list[click.Parameter] = list(getattr(function, "__click_params__", ()))
        vars(function)["__click_params__"] = []
        function = common_options(function)
        if json:
            function = _json_option(function)
        vars(function)["__click_params__"] += own
        return click.command(name, cls=_Utf8Command, help=help, epilog=f"Example:  {example}")(function)

    return decorate


class CommandGroup(click.Group):
    """A group of commands. Options of a command may precede its name.

    Args:
        example: shown at the end of the help.
    """

    def __init__(self, name: str, *, help: str | None, example: str) -> None:
        super().__init__(name, help=help, epilog=f"Example:  {example}")

    def subcommand(
        self, name: str, *, example: str, json: bool = False
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """Return a decorator that makes a command of a function, as :func:`define_command` does."""

        def decorate(function: Callable[..., Any]) -> click.Command:
            command = define_command(name, example=example, json=json)(function)
            self.add_command(command)
            return command

        return decorate

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        position = self._find_name(args)
        return super().parse_args(
            ctx, [*args[position : position + 1], *args[:position], *args[position + 1 :]]
        )

    def _find_name(self, args: list[str]) -> int:
        """Return the position of the first argument that is neither an option nor its value, or 0."""
        options = [
            option
            for command in self.commands.values()
            for option in command.params
            if isinstance(option, click.Option) and not option.is_flag
        ]
        with_value = {name for option in options for name in option.opts}
        is_value = False
        for position, argument in enumerate(args):
            if not is_value and not argument.startswith("-"):
                return position
            is_value = not is_value and argument in with_value
        return 0


class OpenWorkstation(NamedTuple):
    """The result of a command that opens the workstation afterwards.

    Attributes:
        folder: folder of the workspace, or None for the one that the environment or current folder selects.
    """

    folder: Path | None


class OpenFiles(NamedTuple):
    """The result of a command that shows data files on the screen afterwards.

    Attributes:
        locations: paths, URLs and folders, or ``-`` for standard input.
        folder: folder of the workspace for new datasets, or None for the one of the current folder.
    """

    locations: tuple[str, ...]
    folder: Path | None


class _CompletedType(click.types.StringParamType):
    """Text that a shell completes with names of the workspace.

    Args:
        read_names: returns the names; completion prints no errors.
    """

    def __init__(self, read_names: Callable[[click.Context], Iterable[str]]) -> None:
        self._read_names = read_names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with the typed text."""
        from click.shell_completion import CompletionItem

        with suppress(OdfError, OSError):
            return [CompletionItem(name) for name in self._read_names(ctx) if name.startswith(incomplete)]
        return []


def _open_workspace(context: click.Context) -> Workspace:
    return odf_engine.open(options_of(context).workspace)


def _dataset_names(context: click.Context) -> list[str]:
    return sorted(dataset.name for dataset in _open_workspace(context))


def _branch_names(context: click.Context) -> list[str]:
    """Return the branches and tags of the dataset, or the datasets, that the command line names."""
    named = context.params.get("names") or context.params.get("name") or ()
    datasets = _open_workspace(context).match([named] if isinstance(named, str) else list(named))
    return sorted({name for dataset in datasets for name in (*dataset.branch_names, *dataset.tag_names)})


def _repository_names(context: click.Context) -> list[str]:
    return [repository.name for repository in _open_workspace(context).repositories()]


def _repository_prefixes(context: click.Context) -> list[str]:
    """Return the beginnings of the addresses of datasets; the datasets of repositories are not known."""
    return [f"{name}/" for name in _repository_names(context)]


FILE: Final = click.Path(path_type=Path, dir_okay=False)
DATASET: Final = _CompletedType(_dataset_names)
BRANCH: Final = _CompletedType(_branch_names)
REPOSITORY: Final = _CompletedType(_repository_names)
REMOTE_DATASET: Final = _CompletedType(_repository_prefixes)
DATASET_OR_REMOTE: Final = _CompletedType(
    lambda context: [*_dataset_names(context), *_repository_prefixes(context)]
)

on_warning_option: Final = click.option(
    "--on-warning",
    type=click.Choice(["continue", "fail"]),
    default="continue",
    show_default=True,
    help="Whether rows and transactions with warnings are committed, or the job fails without them.",
)


def branch_option(text: str) -> Callable[[F], F]:
    """Return a decorator that adds ``--branch`` to a command; it is empty for the head."""
    return click.option("--branch", metavar="BRANCH", default="", help=text, type=BRANCH)


def parse_time_option(option: str, text: str | None) -> str | None:
    """Return the time of an option as RFC 3339; another text is a UsageError."""
    try:
        return None if text is None else str(api.Timestamp.parse(text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
