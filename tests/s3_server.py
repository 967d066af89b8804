"""A real S3 API for tests, on loopback unless told otherwise: moto's server on a free port, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs

from common.places import Place
from tests.small_corpus import contents
from tests.waiting import answers, wait_until

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address=sys.argv[1], port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server(address: str = "127.0.0.1") -> Iterator[str]:
    """Start the server with one empty bucket `books`. Yields its endpoint, ADDRESS:PORT."""
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin and process.stdout
        try:
            endpoint = f"{address}:{process.stdout.readline().strip()}"
            wait_until(lambda: answers(f"http://{endpoint}"))
            pyarrow.fs.S3FileSystem(
                endpoint_override=endpoint, scheme="http", allow_bucket_creation=True,
                access_key=ENVIRONMENT["AWS_ACCESS_KEY_ID"], secret_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            ).create_dir("books")  # fmt: skip
            yield endpoint
        finally:
            process.stdin.close()
            process.kill()


def uri_in_bucket(endpoint: str, path: str) -> str:
    """The URI of a path in the bucket `books` of the server at ADDRESS:PORT."""
    return f"s3://books/{path}?endpoint_override={endpoint}&scheme=http"


def publish(folder: Path, uri: str) -> str:
    """Copy a folder's files to a URI. Returns the URI."""
    for name, data in contents(folder).items():
        (Place.parse(uri) / name).write_atomically(data)
    return uri
