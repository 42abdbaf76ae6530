from __future__ import annotations

import gzip
import random
import zipfile
from pathlib import Path

import pytest

from odf_engine.errors import BadData, Unsupported
from odf_engine.ingest.prepare import Limits, prepare
from odf_engine.metadata.model import CompressionFormat, Decompress, Pipe, PrepStep
from tests.ingest.recorder import Recorder

GZIP = Decompress(CompressionFormat.Gzip)
ZIP = Decompress(CompressionFormat.Zip)
TEXT = "\n".join(f"{number},{random.Random(number).random()}" for number in range(50_000)).encode()


def run(path: Path, reporter: Recorder, *steps: PrepStep, limits: Limits | None = None) -> tuple[bytes, str]:
    job = path.parent / "job"
    job.mkdir(exist_ok=True)
    prepared = prepare(steps, path, path.name, job, reporter, limits)
    return prepared.path.read_bytes(), prepared.name


def test_gzip(tmp_path: Path, reporter: Recorder) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(TEXT))
    assert run(path, reporter, GZIP) == (TEXT, "a.csv")
    path.write_bytes(gzip.compress(TEXT) + gzip.compress(b"more") + gzip.compress(b"") + b"\0" * 1000)
    assert run(path, reporter, GZIP)[0] == TEXT + b"more"
    path.write_bytes(gzip.compress(gzip.compress(TEXT)))
    assert run(path, reporter, GZIP, GZIP)[0] == TEXT
    assert run(path, reporter) == (path.read_bytes(), "a.csv.gz")


@pytest.mark.parametrize("kept", [0.3, 0.999])
def test_gzip_cut_short(tmp_path: Path, reporter: Recorder, kept: float) -> None:
    path = tmp_path / "a.csv.gz"
    packed = gzip.compress(TEXT)
    path.write_bytes(packed[: int(len(packed) * kept)])
    with pytest.raises(BadData, match=r"a\.csv\.gz: is gzip that was cut short"):
        run(path, reporter, GZIP)


def test_gzip_damaged(tmp_path: Path, reporter: Recorder) -> None:
    path = tmp_path / "a.gz"
    packed = bytearray(gzip.compress(TEXT))
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed)
    with pytest.raises(BadData, match=r"a\.gz: is damaged gzip"):
        run(path, reporter, GZIP)
    path.write_bytes(b"<html>")
    with pytest.raises(BadData, match="is not gzip"):
        run(path, reporter, GZIP)


def make_zip(path: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        for name, data in files.items():
            archive.writestr(name.replace("__", "/") + ".csv", data)
    return path


def test_zip(tmp_path: Path, reporter: Recorder) -> None:
    path = make_zip(tmp_path / "a.zip", one=b"1", folder__two=TEXT, folder__three=b"3")
    assert run(path, reporter, ZIP) == (b"1", "a.zip/one.csv")
    assert "3 files" in reporter.warnings[0]
    two = Decompress(CompressionFormat.Zip, "folder/two.csv")
    assert run(path, reporter, two) == (TEXT, "a.zip/folder/two.csv")
    assert run(path, reporter, Decompress(CompressionFormat.Zip, "*/tw?.csv"))[0] == TEXT
    with pytest.raises(BadData, match="2 files of the archive match subPath 'folder/") as caught:
        run(path, reporter, Decompress(CompressionFormat.Zip, "folder/*"))
    assert "folder/three.csv" in (caught.value.hint or "")
    with pytest.raises(BadData, match="no file of the archive"):
        run(path, reporter, Decompress(CompressionFormat.Zip, "four.csv"))
    # A zip within gzip.
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert run(path, reporter, GZIP, two)[0] == TEXT


def test_zip_damaged(tmp_path: Path, reporter: Recorder) -> None:
    path = make_zip(tmp_path / "a.zip", one=TEXT)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(BadData, match=r"a\.zip: is not a sound zip"):
        run(path, reporter, ZIP)
    path.write_bytes(whole[:2000] + b"\xff" * 50 + whole[2050:])
    with pytest.raises(BadData, match=r"sound|damaged"):
        run(path, reporter, ZIP)


def test_bombs(tmp_path: Path, reporter: Recorder) -> None:
    limits = Limits(most_bytes=3_000_000, most_ratio=100, ratio_from=100_000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"\0" * 2_000_000))
    with pytest.raises(BadData, match="archive bomb"):
        run(path, reporter, GZIP, limits=limits)
    path.write_bytes(gzip.compress(TEXT * 4))
    with pytest.raises(BadData, match="archive bomb"):
        run(path, reporter, GZIP, limits=limits)
    with pytest.raises(BadData, match="archive bomb"):
        run(make_zip(tmp_path / "a.zip", one=b"\0" * 2_000_000), reporter, ZIP, limits=limits)
    path.write_bytes(gzip.compress(TEXT))
    assert run(path, reporter, GZIP, limits=limits)[0] == TEXT


def test_commands_are_not_run(tmp_path: Path, reporter: Recorder) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    with pytest.raises(Unsupported, match="Pipe"):
        run(path, reporter, Pipe(["touch", str(tmp_path / "ran")]))
    assert not (tmp_path / "ran").exists()
