"""A local S3 server for what is kept or handed over beyond this machine."""

import pytest


@pytest.fixture(scope="package")
def s3():
    """A real S3 server (a second, once: clients are cached by their arguments, so a second server would go unseen)."""
    server = pytest.importorskip("moto.server", reason="moto is missing: pip install 'sfumato[scale,test]'")
    pytest.importorskip("s3fs", reason="s3fs is missing: pip install 'sfumato[scale]'")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = running.get_host_and_port()
        where = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**where, "AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}.items():
            patch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    running.stop()
