"""Requests: what a job is asked to do. Their tags are the kinds of jobs."""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Brings a dataset up to date; ``dataset`` is an id.

    A root dataset's source is polled until it has no more, a derivative one takes in what its inputs
    have. It waits for jobs of the datasets ``after`` that were entered before it. With
    ``reset_on_divergence`` a derivative one begins anew where an input was reset or replaced.

    One that comes from elsewhere takes over what is new there: from ``url``, else from where it came. With
    ``force`` also where both have changed since; the head it had is kept as a reference. A dataset that is
    not here yet comes under the name ``alias``; ``dataset`` is then the URL.
    """

    dataset: str
    after: list[str] = []
    fetch_uncacheable: bool = False
    set_watermark: str | None = None
    force: bool = False
    strict: bool = False
    reset_on_divergence: bool = False
    url: str | None = None
    alias: str | None = None


class Push(msgspec.Struct, frozen=True, tag="push"):
    """Brings another place up to date with a dataset; ``dataset`` is an id, ``url`` where it goes.

    With ``force`` also what only that place has is given up there; where it can be, its head is kept as a
    reference. The result is JSON: name, url, label (how people call it), status (updated or up-to-date),
    old_head, new_head, blocks, objects, bytes.
    """

    dataset: str
    url: str
    force: bool = False


class Compare(msgspec.Struct, frozen=True, tag="compare"):
    """Looks how a dataset stands to where it comes from and goes to, and remembers it.

    ``dataset`` is an id; ``urls`` are by default all of its remotes. The result is JSON: name, and ``seen``
    as ``odf_engine.workspace.remotes.Seen``; ``problems`` are [{url, message}]; all of them
    have a ``label``, which is how people call the place.
    """

    dataset: str
    urls: list[str] = []


class Search(msgspec.Struct, frozen=True, tag="search"):
    """Looks for datasets in repositories: those named, by default all of them; ``dataset`` is empty.

    The result is JSON::

        datasets  [{repository, name, url, id, kind, head, blocks, records, size, description, keywords}]
        problems  [{repository, message}]: those that could not be asked
    """

    text: str
    repositories: list[str] = []
    dataset: str = ""


class Ingest(msgspec.Struct, frozen=True, tag="ingest"):
    """Pushes the rows of files into a push source; what is None, the source or the file itself says.

    ``files`` are absolute paths, read in this order; ``event_time`` is RFC 3339.
    """

    dataset: str
    files: list[str]
    source: str | None = None
    format: str | None = None
    event_time: str | None = None
    ignore_unknown: bool = False
    strict: bool = False


class Verify(msgspec.Struct, frozen=True, tag="verify"):
    """Checks chain, slices and checkpoints; ``first``..``last`` are sequence numbers, inclusive.

    Transactions are run again unless ``integrity`` is set. With ``rows`` also rows that were found right
    before are checked again, where the bytes of their slice are the same. In the result, ``head`` is the
    newest block, when the whole chain up to it was found right; else null.
    """

    dataset: str
    integrity: bool = False
    first: int | None = None
    last: int | None = None
    rows: bool = False


class Validate(msgspec.Struct, frozen=True, tag="validate"):
    """Looks whether the query of a derivative dataset can be run; nothing is changed.

    ``manifest`` is the definition as YAML; ``dataset`` is an id, or empty for a dataset that is not
    there yet. A wrong query fails the job; the result is JSON::

        name     the dataset's name
        checked  false when the query cannot be looked at yet, because an input has no schema
        message  what a person should know, or null
        schema   the columns that it makes, as DDL; null when it was not looked at
        new      names of the columns that the dataset does not have yet
        state    what becomes of the state with an Update: none (there is none), kept, or lost, when
                 it has to be flushed or rebuilt
    """

    manifest: str
    dataset: str = ""


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Changes a derivative dataset to what a definition says, once its old query has done what lies before.

    ``dataset`` is an id and ``manifest`` the definition as YAML. ``state`` says what becomes of the state
    of the old query where the new one cannot go on from it: ``flush`` lets come out what was still to
    come and begins with none, ``rebuild`` makes the one that the new query would have by now; when empty
    the job fails. With ``accept_columns`` columns that the query gives and the dataset does not have yet
    come into its schema even where the definition changes nothing else. ``origin`` is the URL that the
    definition came from, when somebody else wrote it. The result is JSON::

        name, status (updated or unchanged), old_head, new_head, blocks, records
        state    none, kept, flushed or rebuilt
        changes  what was appended for people: [{title, lines}]
    """

    dataset: str
    manifest: str
    state: Literal["", "flush", "rebuild"] = ""
    accept_columns: bool = False
    origin: str | None = None


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Computes statistics of all columns; what is found is kept in the workspace's cache.

    They are of all rows of a dataset, or of those in ``file``, a Parquet file that a projection or a query
    made; ``dataset`` is empty when these are of none. The result is JSON: name, rows.
    """

    dataset: str
    file: str | None = None


class Project(msgspec.Struct, frozen=True, tag="project"):
    """Makes the current state of a changelog by key: a Parquet file in the workspace's cache.

    Without ``key`` it is the primary key of the dataset's merge strategy, or what its query groups by.
    ``as_at`` (a system time or a block, see ``odf_engine.workspace.pins``) makes it of what was known
    then, ``as_of`` (RFC 3339) of what has happened until that event time. The result is JSON::

        name  the dataset's name
        key   the columns of the key
        rows  how many there are
        of    how many rows the changelog has
        file  the absolute path of the file
        pin   the block that it is made of, as ``odf_engine.workspace.pins.Pin``
    """

    dataset: str
    key: list[str] = []
    as_at: str | None = None
    as_of: str | None = None


class Export(msgspec.Struct, frozen=True, tag="export"):
    """Writes rows to a file for other programs.

    They are the rows of the dataset, or those in ``file``, a Parquet file; ``dataset`` is empty when these
    are of none. ``ranges`` says which of them, in pairs of the number of a row from 0 and that after the
    last one; by default it is all. ``path`` is absolute; with ``replace`` a file that is there already goes
    away. Without ``system`` the columns that the system made are left out. The result is JSON: name, rows,
    size (in bytes), path.
    """

    dataset: str
    path: str
    format: Literal["csv", "json", "ndjson", "parquet"] = "csv"
    file: str | None = None
    ranges: list[tuple[int, int]] = []
    system: bool = True
    replace: bool = False


class Query(msgspec.Struct, frozen=True, tag="sql"):
    """Asks a query over datasets by their names; nothing is changed.

    At most ``limit`` rows of its result are kept, all of them where it is None: in the workspace's cache
    as Parquet, or with ``output``, an absolute path, there in another ``format``. ``dataset`` is empty: a
    query is of no dataset. ``as_at`` and ``as_of`` say how all datasets are seen that the query says
    nothing of by itself; ``pins`` name for some of them (names or ids) the block they are seen at. With
    ``proof`` the result has what proves it, signed with the key of the dataset ``sign`` when one is named.
    The result is JSON::

        sql        the query
        pins       the blocks that it was answered from, as ``odf_engine.workspace.pins.Pin``
        proof      the document that proves it, or null; see ``odf_engine.workspace.answers``
        path       the Parquet file of the rows, from the workspace's folder on; it goes when newer ones come.
                   Empty with ``output``
        output     the file that they are in, or null
        columns    [{name, type}], the types as DDL has them
        rows       how many there are
        truncated  whether there would have been more
        seconds    from the start of the job
    """

    sql: str
    limit: int | None = 1_000_000
    dataset: str = ""
    as_at: str | None = None
    as_of: str | None = None
    pins: dict[str, str] = {}
    output: str | None = None
    format: Literal["csv", "json", "ndjson", "parquet"] = "parquet"
    proof: bool = False
    sign: str | None = None


class CheckProof(msgspec.Struct, frozen=True, tag="check-proof"):
    """Looks whether what proves the answer of a query is right, and asks the query again.

    ``proof`` is the document as text; ``dataset`` is empty. The result is JSON::

        valid      whether the same query over the same blocks gave the same rows, and the signature is right
        checked    false when blocks that it names are not here, so that the query was not asked
        findings   [{kind, message, hint}]
        query      the query
        rows       how many there are, as the proof says
        hash       of them
        signed_by  the id of the dataset whose key signed it, or null
        seconds    from the start of the job
    """

    proof: str
    dataset: str = ""


class Trace(msgspec.Struct, frozen=True, tag="trace"):
    """Finds out where rows of a dataset come from.

    ``runs`` are offsets, the last ones inclusive. With ``column`` it is the values of this column. It goes
    ``depth`` datasets up, by default to the sources. With ``check`` the newest step is run again with the
    rows that were found alone, and without them. The result is JSON: an
    ``odf_engine.workspace.traced.Step``; with ``check`` also ``checked``, a list of texts.
    """

    dataset: str
    runs: list[tuple[int, int]]
    column: str | None = None
    depth: int | None = None
    check: bool = False


class Diff(msgspec.Struct, frozen=True, tag="diff"):
    """Compares two versions of a dataset, or two datasets; nothing is changed.

    ``dataset`` is the id of the older one, ``other`` of the newer one, empty for the same. ``as_at`` and
    ``other_as_at`` are a system time or a block each. Rows are told apart by ``key``, by default by that of
    the datasets. The result is described with ``odf_engine.workspace.differing.Difference``.
    """

    dataset: str
    other: str = ""
    as_at: str | None = None
    other_as_at: str | None = None
    key: list[str] = []


Request = (
    Pull
    | Push
    | Compare
    | Search
    | Ingest
    | Verify
    | Validate
    | Update
    | Query
    | CheckProof
    | Trace
    | Diff
    | Describe
    | Project
    | Export
)

LOOKS: Final = frozenset(
    {"check-proof", "compare", "describe", "diff", "export", "project", "search", "sql", "trace"}
)
"""Kinds of jobs that only look at what a dataset has. They change nothing, and run beside those that do."""

_WITHOUT_SPARK: Final = (Push, Compare, Search, Describe, Project, Export, Diff)


def needs_spark(request: Request) -> bool:
    """Whether a job is going to ask for Spark, as far as its request tells."""
    match request:
        case Pull():
            return request.url is None
        case Verify():
            return not request.integrity
        case _:
            return not isinstance(request, _WITHOUT_SPARK)
