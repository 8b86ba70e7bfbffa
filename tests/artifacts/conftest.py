"""A local S3 server for what is kept or handed over beyond this machine."""

import contextlib
import socket
import time

import pytest


@pytest.fixture(scope="module")
def s3():
    """A real S3 server (a second, once)."""
    server = pytest.importorskip("moto.server", reason="moto is missing: pip install 'sfumato[scale,test]'")
    pytest.importorskip("s3fs", reason="s3fs is missing: pip install 'sfumato[scale]'")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = running.get_host_and_port()
        for _ in range(300):  # its thread may take a while beside other work
            with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
                break
            time.sleep(0.1)
        where = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**where, "AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}.items():
            patch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    running.stop()
