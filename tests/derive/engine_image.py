"""A stand-in for podman whose only image is an ODF engine: this project's engine behind another process.

The process sees the files of a request under the paths of a container. Like the engines of other
implementations, it requires signed system columns and writes them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from odf_engine.engines.grpc_messages import RAW_QUERY, SERVICE, TRANSFORM, decode_field, encode_fields
from odf_engine.metadata.flatbuffers import decode_table, encode_table
from odf_engine.metadata.model import RawQueryRequest, TransformInternalError, TransformRequest

SIGNED = {"offset": pa.int64(), "op": pa.int32()}
PODMAN = """#!{python}
import os, signal, subprocess, sys, time
from pathlib import Path
home = Path(__file__).parent
verb, *rest = sys.argv[1:]
with (home / "calls").open("a") as calls:
    calls.write("\\x1f".join(sys.argv[1:]) + "\\n")
if verb == "image":
    if not (home / "image").exists():
        sys.exit(125)
    digest = home / "digest"
    if "RepoDigests" in sys.argv[4] and digest.exists():
        print(rest[-1].partition("@")[0].rpartition(":")[0] + "@sha256:" + digest.read_text())
if verb == "network" and rest[0] == "create":
    if (home / "no-network").exists():
        print("no subnet is free", file=sys.stderr)
        sys.exit(125)
    (home / "networks" / rest[-1]).touch()
if verb == "network" and rest[0] == "ls":
    print("\\n".join(path.name for path in (home / "networks").iterdir()))
if verb == "network" and rest[0] == "rm":
    (home / "networks" / rest[-1]).unlink(missing_ok=True)
if verb == "inspect" and (home / "host").exists():
    print((home / "host").read_text())
if verb == "pull":
    (home / "image").touch()
if verb == "ps":
    print("\\n".join(path.name for path in (home / "running").iterdir()))
if verb == "port":
    port = home / "ports" / rest[0]
    if not port.exists() or not port.read_text():
        sys.exit(125)
    if not (home / "host").exists():
        print("2884/tcp -> 127.0.0.1:" + port.read_text())
if verb == "kill":
    try:
        os.kill(int((home / "running" / rest[0]).read_text()), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        sys.exit(125)
if verb == "rm":
    (home / "running" / rest[-1]).unlink(missing_ok=True)
if verb == "run":
    options = rest[: rest.index("--")]
    name = next(each for each in options if each.startswith("--name=")).partition("=")[2]
    volumes = [each.partition("=")[2].split(":")[:2] for each in options if each.startswith("--volume=")]
    if (home / "broken").exists():
        print("exec format error", file=sys.stderr)
        sys.exit(1)
    if (home / "slow").exists():
        (home / "running" / name).write_text(str(os.getpid()))
        time.sleep(60)
    command = [sys.executable, "-m", "tests.derive.engine_image", str(home / "ports" / name)]
    process = subprocess.Popen([*command, *(part for each in volumes for part in each)])
    (home / "running" / name).write_text(str(process.pid))
    code = process.wait()
    (home / "running" / name).unlink(missing_ok=True)
    sys.exit(code)
"""


class ImageStandIn:
    """A program named podman on the PATH; ``served`` is the address of the engine behind the image."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, served: str) -> None:
        self.folder = folder
        for each in (folder, folder / "running", folder / "ports", folder / "networks"):
            each.mkdir()
        program = folder / "podman"
        program.write_text(PODMAN.replace("{python}", sys.executable))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        monkeypatch.setenv("ENGINE_IMAGE_TARGET", served.removeprefix("grpc://"))

    def calls(self, verb: str) -> list[list[str]]:
        calls = [line.split("\x1f") for line in (self.folder / "calls").read_text().splitlines()]
        return [call[1:] for call in calls if call[0] == verb]

    @property
    def networks(self) -> list[str]:
        return [path.name for path in (self.folder / "networks").iterdir()]

    @property
    def running(self) -> list[str]:
        return [path.name for path in (self.folder / "running").iterdir()]


def _serve(port_file: Path, volumes: dict[str, str]) -> None:
    def on_host(path: str) -> str:
        inside, _, name = path.rpartition("/")
        return f"{volumes[inside]}/{name}"

    def signed(path: Path, fields: dict[str, pa.DataType]) -> pa.Schema:
        schema = pq.read_schema(path)
        return pa.schema([field.with_type(fields.get(field.name, field.type)) for field in schema])

    def execute(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = decode_table(decode_field(message), TransformRequest)
        for each in request.query_inputs:
            for path in [each.schema_file, *each.data_paths]:
                if signed(Path(on_host(path)), SIGNED) != pq.read_schema(on_host(path)):
                    yield encode_fields(
                        encode_table(TransformInternalError("the op column must be int32", None))
                    )
                    return
        inner = replace(
            request,
            transform=replace(request.transform, engine="spark"),
            query_inputs=[
                replace(
                    each,
                    data_paths=[on_host(path) for path in each.data_paths],
                    schema_file=on_host(each.schema_file),
                )
                for each in request.query_inputs
            ],
            prev_checkpoint_path=request.prev_checkpoint_path and on_host(request.prev_checkpoint_path),
            new_checkpoint_path=on_host(request.new_checkpoint_path),
            new_data_path=on_host(request.new_data_path),
        )
        with grpc.insecure_channel(os.environ["ENGINE_IMAGE_TARGET"]) as channel:
            answers = list(
                channel.unary_stream(f"/{SERVICE}/{TRANSFORM}")(encode_fields(encode_table(inner)))
            )
        data = Path(inner.new_data_path)
        if data.exists():
            table = pq.read_table(data)
            pq.write_table(table.cast(signed(data, SIGNED)), data)
        # Only the fields that all implementations have.
        yield from (encode_fields(decode_field(answer)) for answer in answers)

    def query(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = decode_table(decode_field(message), RawQueryRequest)
        inner = replace(
            request,
            input_data_paths=[on_host(path) for path in request.input_data_paths],
            output_data_path=on_host(request.output_data_path),
        )
        with grpc.insecure_channel(os.environ["ENGINE_IMAGE_TARGET"]) as channel:
            stream = channel.unary_stream(f"/{SERVICE}/{RAW_QUERY}")
            yield from (
                encode_fields(decode_field(answer)) for answer in stream(encode_fields(encode_table(inner)))
            )

    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {
        name: grpc.unary_stream_rpc_method_handler(method)
        for name, method in ((TRANSFORM, execute), (RAW_QUERY, query))
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(os.environ.get("ENGINE_IMAGE_LISTENS", "127.0.0.1:0"))
    server.start()
    port_file.write_text(str(port))
    server.wait_for_termination()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), dict(zip(sys.argv[3::2], sys.argv[2::2], strict=True)))
