"""Polling sources that are kept outside the chains: Source resources (RFC-018).

So a published chain does not reveal where its publisher reads the data. ``.odf/sources`` has a file for each
such dataset. The states of the source stay in the chain, as for other sources. Their source name is the UUID
of the resource.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from odf_engine.base.atomic_files import make_folder, read_small_file, replace_text_file
from odf_engine.base.lazy import LazyModule
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.normal_form import normalize_event
from odf_engine.chain.state import SOURCE_NAME, ChainState, is_push_state, is_same_source
from odf_engine.errors import InvalidIdentity, InvalidManifest, SourceUnavailable
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.metadata.model import SetPollingSource
from odf_engine.metadata.resources import VALUE_REFERENCE, SourceDefinition, ValueSet
from odf_engine.net.credentials import Credentials

if TYPE_CHECKING:
    from odf_engine.metadata import yaml as metadata_yaml
else:  # imports PyYAML
    metadata_yaml = LazyModule("odf_engine.metadata.yaml")

_FOLDER: Final = "sources"
_SUFFIX: Final = ".yaml"


class PrivateSource(NamedTuple):
    """A polling source that is kept outside the chain of its dataset.

    Attributes:
        id: the UUID, which changes if the source reads other data; "" if it was moved out of the chain.
        source: the source, with its query in normal form.
        config: references to values, such as ``SecretSet:keys#token``, by the names that the source uses.
    """

    id: str
    source: SetPollingSource
    config: Mapping[str, str]

    @property
    def source_name(self) -> str:
        """The name of the source in its states."""
        return self.id or SOURCE_NAME


def source_path(dataset_folder: Path) -> Path:
    """Return the path of the private source of a dataset, whether it has one or not."""
    return dataset_folder.parent.parent / _FOLDER / f"{dataset_folder.name}{_SUFFIX}"


def list_private_sources(odf: Path) -> set[DatasetId]:
    """Return the datasets that have a private source."""
    try:
        paths = [path for path in (odf / _FOLDER).iterdir() if path.suffix == _SUFFIX]
    except OSError:
        return set()
    datasets: set[DatasetId] = set()
    for path in paths:
        with suppress(InvalidIdentity):  # a file of the user
            datasets.add(DatasetId.parse(f"{DID_PREFIX}{path.stem}"))
    return datasets


def read_private_source(dataset_folder: Path) -> PrivateSource | None:
    """Return the private source of a dataset, or None if it has none.

    Raises:
        InvalidManifest: the file is damaged.
    """
    path = source_path(dataset_folder)
    try:
        text = read_small_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidManifest(f"the source cannot be read: {error.strerror}", where=str(path)) from None
    try:
        definitions = metadata_yaml.read_manifests(text, str(path))
    except InvalidManifest as error:
        error.hint = f"remove the file {path}, then add the source: odf add --update MANIFEST"
        raise
    for definition in definitions:
        if isinstance(definition, SourceDefinition):
            source = normalize_event(polling_source_of(definition))
            return PrivateSource(definition.resource_id, source, definition.config)
    raise InvalidManifest("the file has no Source", where=str(path), hint="add the source: odf add --update")


def list_value_variables(odf: Path, dataset: str) -> list[str]:
    """Return the environment variables that the private source of a dataset reads, if it has one.

    Raises:
        OdfError: the source cannot be read, or ``dataset`` is not an id.
    """
    if not (odf / _FOLDER).is_dir():
        return []
    private = read_private_source(odf / "datasets" / DatasetId.parse(dataset).multibase)
    return [] if private is None else list(map(value_variable, private.config.values()))


def store_value_sets(odf: Path, sets: Iterable[ValueSet]) -> None:
    """Store the values of VariableSet and SecretSet resources, in a file that only its owner can read.

    Raises:
        OdfError: they cannot be stored.
    """
    for item in sets:
        Credentials(odf).set_values(f"{item.type}:{item.name}#", item.values)


def polling_source_of(definition: SourceDefinition) -> SetPollingSource:
    """Return the polling source of a definition."""
    return next(event for event in definition.metadata if isinstance(event, SetPollingSource))


def with_resource_id(
    definition: SourceDefinition, state: ChainState, before: PrivateSource | None
) -> SourceDefinition:
    """Return a definition with an id that continues the states of the source, if it reads the same data.

    Without an earlier source, such as for a dataset that was pulled from a remote, it continues the newest
    state of the chain.

    Args:
        definition: the new definition.
        state: the state of the chain, which may have the source until now.
        before: the previous private source.
    """
    fetch, old = polling_source_of(definition).fetch, state.polling_source
    newest = state.data_source_state
    if before is not None:
        name = before.id if is_same_source(before.source.fetch, fetch) else None
    elif old is not None:
        name = "" if is_same_source(old.fetch, fetch) else None
    elif newest is not None and not is_push_state(newest):
        name = newest.source_name.replace(SOURCE_NAME, "")
    else:
        name = None
    return replace(definition, resource_id=str(uuid.uuid4()) if name is None else name)


def store_private_source(dataset_folder: Path, definition: SourceDefinition) -> None:
    """Store the private source of a dataset in place of an earlier one.

    Raises:
        OdfError: it cannot be stored.
    """
    path, source = source_path(dataset_folder), polling_source_of(definition)
    make_folder(path.parent)
    replace_text_file(path, metadata_yaml.snapshot_to_yaml(replace(definition, metadata=[source])))


def remove_private_source(dataset_folder: Path) -> None:
    """Remove the private source of a dataset, if it has one."""
    source_path(dataset_folder).unlink(missing_ok=True)


def local_state(dataset: Dataset) -> ChainState:
    """Return the state of a chain as this workspace uses it: with the private source, if there is one.

    It has private settings: do not publish it. See :meth:`odf_engine.chain.dataset.Dataset.state`.

    Raises:
        InvalidManifest: the file of the source is damaged.
        OdfError: the chain cannot be read.
    """
    state = dataset.state()
    private = read_private_source(dataset.folder)
    if private is None:
        return state
    known = state.data_source_state  # a source that was disabled in the chain has no state there
    if known is None or is_push_state(known) or known.source_name != private.source_name:
        known = state.source_state
    if known is not None and known.source_name != private.source_name:
        known = None
    # Without a state, whether this source was pulled is unknown.
    was_polled = known is not None or (state.source_state is None and state.last_offset is not None)
    return replace(state, polling_source=private.source, source_state=known, was_polled=was_polled)


def read_values(odf: Path, private: PrivateSource, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a private source, by the names of their templates, such as ``config.token``.

    A value is read from its VariableSet or SecretSet, otherwise from the environment variable of
    :func:`value_variable`.

    Args:
        odf: the ``.odf`` folder of the workspace.
        private: the source.
        environment: values of the request; other variables are read from the environment of this process.

    Raises:
        SourceUnavailable: a value is unknown.
    """
    credentials, values = Credentials(odf), dict[str, str]()
    for name, reference in private.config.items():
        variable = value_variable(reference)
        value = credentials.value(reference) or environment.get(variable, os.environ.get(variable))
        if value is None:
            raise SourceUnavailable(
                f"{reference} has no value",
                hint=f"add the set: odf add FILE, or set the environment variable: export {variable}=…",
            )
        values[f"config.{name}"] = value
    return values


def value_variable(reference: str) -> str:
    """Return the environment variable for a reference, such as ``ODF_VALUE_MY_KEYS_TOKEN``.

    That is for ``SecretSet:my-keys#token``. Due to the prefix, a source cannot read other variables.
    """
    match = VALUE_REFERENCE.fullmatch(reference)
    text = f"ODF_VALUE_{match[2]}_{match[3]}" if match else reference
    return "".join(character if character.isalnum() else "_" for character in text).upper()
