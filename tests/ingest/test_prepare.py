from __future__ import annotations

import base64
import errno
import gzip
import random
import zipfile
from pathlib import Path

import pytest

from odf_engine.base.config import Config
from odf_engine.base.settings import save, set_value
from odf_engine.errors import BadData
from odf_engine.ingest.inference.file_sample import read_sample
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits, prepare
from odf_engine.ingest.read.shapefile import shapefile_to_lines
from odf_engine.metadata.model import CompressionFormat, Decompress, Pipe, PrepStep
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder

GZIP = Decompress(CompressionFormat.Gzip)
ZIP = Decompress(CompressionFormat.Zip)
TEXT = "\n".join(f"{number},{random.Random(number).random()}" for number in range(50_000)).encode()


def run(
    path: Path, reporter: Recorder, *steps: PrepStep, limits: PrepareLimits | None = None
) -> tuple[bytes, str]:
    job = path.parent / "job"
    job.mkdir(exist_ok=True)
    prepared = prepare(steps, PreparedFile(path, path.name), path.parent, job, reporter, limits)
    return prepared.path.read_bytes(), prepared.name


def test_gzip_members_are_decompressed(tmp_path: Path, reporter: Recorder) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(TEXT, 1))
    assert run(path, reporter, GZIP) == (TEXT, "a.csv")
    path.write_bytes(gzip.compress(TEXT, 1) + gzip.compress(b"more") + gzip.compress(b"") + b"\0" * 1000)
    assert run(path, reporter, GZIP)[0] == TEXT + b"more"
    path.write_bytes(gzip.compress(gzip.compress(TEXT, 1)))
    assert run(path, reporter, GZIP, GZIP)[0] == TEXT
    assert run(path, reporter) == (path.read_bytes(), "a.csv.gz")


@pytest.mark.parametrize("kept", [0.3, 0.999])
def test_truncated_gzip_is_rejected(tmp_path: Path, reporter: Recorder, kept: float) -> None:
    path = tmp_path / "a.csv.gz"
    packed = gzip.compress(TEXT, 1)
    path.write_bytes(packed[: int(len(packed) * kept)])
    with pytest.raises(BadData, match=r"a\.csv\.gz: truncated gzip file"):
        run(path, reporter, GZIP)


def test_damaged_gzip_is_rejected(tmp_path: Path, reporter: Recorder) -> None:
    path = tmp_path / "a.gz"
    packed = bytearray(gzip.compress(TEXT, 1))
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed)
    with pytest.raises(BadData, match=r"a\.gz: damaged gzip file"):
        run(path, reporter, GZIP)
    path.write_bytes(b"<html>")
    with pytest.raises(BadData, match="not a gzip file"):
        run(path, reporter, GZIP)


def make_zip(path: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        for name, data in files.items():
            archive.writestr(name.replace("__", "/") + ".csv", data)
    return path


def test_directory_of_a_zip_archive_is_limited(
    tmp_path: Path, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1000):
            archive.writestr(f"{number}.csv", b"1")
    one = Decompress(CompressionFormat.Zip, sub_path="7.csv")
    assert run(path, reporter, one) == (b"1", "a.zip/7.csv")
    monkeypatch.setattr("odf_engine.data.zip_archive.MAX_DIRECTORY_BYTES", 40_000)
    with pytest.raises(BadData, match=r"a\.zip: the archive lists too many entries"):
        run(path, reporter, one)
    with pytest.raises(BadData, match="lists too many entries"):
        shapefile_to_lines(path, "a.zip", None, tmp_path, reporter)
    with pytest.raises(BadData, match="lists too many entries"):
        read_sample(path, "a.zip", reporter)


def test_zip_requires_one_file_or_a_matching_sub_path(tmp_path: Path, reporter: Recorder) -> None:
    path = make_zip(tmp_path / "a.zip", one=b"1", folder__two=TEXT, folder__three=b"3")
    with pytest.raises(
        BadData, match=r"a\.zip: the archive contains 3 files .*: one\.csv, folder/two\.csv, f"
    ):
        run(path, reporter, ZIP)
    assert run(make_zip(tmp_path / "b.zip", one=b"1"), reporter, ZIP) == (b"1", "b.zip/one.csv")
    two = Decompress(CompressionFormat.Zip, "folder/two.csv")
    assert run(path, reporter, two) == (TEXT, "a.zip/folder/two.csv")
    assert run(path, reporter, Decompress(CompressionFormat.Zip, "*/tw?.csv"))[0] == TEXT
    with pytest.raises(BadData, match="2 files in the archive match subPath 'folder/") as caught:
        run(path, reporter, Decompress(CompressionFormat.Zip, "folder/*"))
    assert "folder/three.csv" in (caught.value.hint or "")
    with pytest.raises(BadData, match="no files in the archive"):
        run(path, reporter, Decompress(CompressionFormat.Zip, "four.csv"))
    # A zip within gzip.
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert run(path, reporter, GZIP, two)[0] == TEXT


def test_damaged_zip_is_rejected(tmp_path: Path, reporter: Recorder) -> None:
    path = make_zip(tmp_path / "a.zip", one=TEXT)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(BadData, match=r"a\.zip: invalid zip"):
        run(path, reporter, ZIP)
    path.write_bytes(whole[:2000] + b"\xff" * 50 + whole[2050:])
    with pytest.raises(BadData, match=r"sound|damaged"):
        run(path, reporter, ZIP)


def test_invalid_zip_directory_is_rejected(tmp_path: Path, reporter: Recorder) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("é.csv", TEXT)
    data = path.read_bytes()
    entry = data.index(b"PK\x01\x02")
    for wrong in (
        data.replace("é".encode(), b"\xe9 "),  # marked as UTF-8
        data[: entry + 6] + b"\xff" + data[entry + 7 :],  # needs version 25.5
        data[: entry + 42] + b"\xff\xff\xff\x7f" + data[entry + 46 :],  # the place of the file
        data.replace(b"BZh", b"BZx"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(BadData, match=r"^a\.zip: .* zip archive"):
            run(path, reporter, ZIP)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", b"1")
    path.write_bytes(path.read_bytes().replace(b"\x05\0\0\0\0\0", b"\0\0\0\0\0\0"))  # a name of no letters
    with pytest.raises(BadData, match=r"^a\.zip: .* zip archive"):
        run(path, reporter, ZIP)


def test_disk_error_is_not_reported_as_bad_archive(
    tmp_path: Path, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("odf_engine.ingest.prep_step._write", full)
    with pytest.raises(OSError, match="No space left"):
        run(make_zip(tmp_path / "a.zip", one=b"1"), reporter, ZIP)


def test_decompression_bombs_are_rejected(tmp_path: Path, reporter: Recorder) -> None:
    limits = PrepareLimits(most_bytes=3_000_000, most_ratio=100, ratio_from=100_000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"\0" * 2_000_000))
    with pytest.raises(BadData, match="decompression bomb"):
        run(path, reporter, GZIP, limits=limits)
    path.write_bytes(gzip.compress(TEXT * 4, 1))
    with pytest.raises(BadData, match="decompression bomb"):
        run(path, reporter, GZIP, limits=limits)
    with pytest.raises(BadData, match="decompression bomb"):
        run(make_zip(tmp_path / "a.zip", one=b"\0" * 2_000_000), reporter, ZIP, limits=limits)
    path.write_bytes(gzip.compress(TEXT, 1))
    assert run(path, reporter, GZIP, limits=limits)[0] == TEXT


def test_nested_bombs_are_measured_against_the_outermost_file(tmp_path: Path, reporter: Recorder) -> None:
    limits = PrepareLimits(most_bytes=1 << 30, most_ratio=100, ratio_from=100_000)
    path = tmp_path / "a.gz"
    inner = gzip.compress(b"\0" * 90_000) * 90  # each step alone is within the ratio
    path.write_bytes(gzip.compress(inner))
    assert len(inner) < 100 * path.stat().st_size
    with pytest.raises(BadData, match="decompression bomb"):
        run(path, reporter, GZIP, GZIP, limits=limits)
    zeros = make_zip(tmp_path / "zeros.zip", one=b"\0" * 5_000_000)
    limits = PrepareLimits(most_bytes=1 << 30, most_ratio=2000, ratio_from=100_000)
    assert len(run(zeros, reporter, ZIP, limits=limits)[0]) == 5_000_000
    with pytest.raises(BadData, match="decompression bomb"):
        run(make_zip(tmp_path / "a.zip", one=zeros.read_bytes()), reporter, ZIP, ZIP, limits=limits)


def test_decompression_limits_come_from_the_configuration() -> None:
    config = set_value(set_value(Config(), "prepare.mostBytes", "1000"), "prepare.mostRatio", "2")
    assert PrepareLimits.of(config) == PrepareLimits(most_bytes=1000, most_ratio=2)


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "C:\\evil", "..\\evil", "\\evil"])
def test_zip_entry_outside_the_root_folder_is_rejected(tmp_path: Path, reporter: Recorder, name: str) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.csv", "1")
        archive.writestr(name, "2")
    for sub_path in (None, "one.csv", "*evil"):
        with pytest.raises(
            BadData, match=r"a\.zip: the archive has an entry outside its root folder: '.*evil'"
        ):
            run(path, reporter, Decompress(CompressionFormat.Zip, sub_path))
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["a.zip", "job"]


def test_encrypted_zip_entry_is_rejected(tmp_path: Path, reporter: Recorder) -> None:
    path = make_zip(tmp_path / "a.zip", one=b"1")
    data = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.rindex(magic) if flags == 8 else data.index(b"one.csv") - 30
        data[at + flags] |= 1
    at = data.rindex(b"one.csv") - 46
    data[at + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(BadData, match=r"entry 'one\.csv' is encrypted"):
        run(path, reporter, ZIP)


def test_prepare_steps_run_in_the_declared_order(tmp_path: Path, reporter: Recorder) -> None:
    inner = make_zip(tmp_path / "inner.zip", one=b"1\n2\n", two=b"no").read_bytes()
    path = tmp_path / "a.b64"
    path.write_bytes(base64.b64encode(gzip.compress(inner)))
    steps = [
        Pipe(["base64", "-d"]),
        GZIP,
        Decompress(CompressionFormat.Zip, "on?.csv"),
        Pipe(["sed", "s/1/one/"]),
        Pipe(["gzip"]),
        GZIP,
    ]
    assert run(path, reporter, *steps) == (b"one\n2\n", "a.b64 | base64/one.csv | sed | gzip")
    assert [each.name for each in (tmp_path / "job").iterdir()] == ["prepared-5"]


def test_pull_of_an_invalid_archive_leaves_the_head(pulled: Pulled) -> None:
    config = set_value(pulled.workspace.config, "prepare.mostBytes", "200000")
    save(config, pulled.workspace.config_path)
    pulled.workspace = Workspace(pulled.workspace.folder)
    path = pulled.write("data.zip", b"")
    pulled.add("""
fetch: {kind: Url, url: data.zip}
prepare: [{kind: Decompress, format: Zip}, {kind: Decompress, format: Gzip}]
read: {kind: Csv, schema: [id BIGINT]}
merge: {kind: Append}
""")
    for files, said in (
        ({"one": gzip.compress(b"1\n")[:-5]}, "data.zip/one.csv: truncated gzip file"),
        ({"one": b"1", "two": b"2"}, "data.zip: the archive contains 2 files and subPath is not set"),
        ({"..__one": b"1"}, "an entry outside its root folder"),
        ({"one": gzip.compress(b"\0" * 300_000)}, "data.zip/one.csv: decompression bomb suspected"),
    ):
        make_zip(path, **files)
        pulled.fails(BadData, said)
    make_zip(path, one=gzip.compress(b"1\n"))
    assert pulled.pull().records == 1
