"""Addresses of object stores: what is one, and what is refused without repeating a credential."""

from __future__ import annotations

import pytest

from drivetrain.storage.remote_address import BadAddress, is_remote, parse


@pytest.mark.parametrize(
    ("text", "host", "path"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://my-bucket.x/runs/a b/", "my-bucket.x", "runs/a b"),
        ("gs://bucket_1/runs", "bucket_1", "runs"),
        ("https://host.example:8443/data/x.parquet", "host.example:8443", "data/x.parquet"),
        ("S3://bucket/x", "bucket", "x"),
    ],
)
def test_parts(text: str, host: str, path: str) -> None:
    address = parse(text)
    assert (address.host, address.path) == (host, path)
    assert is_remote(text)
    assert parse(str(address)) == address


def test_below_and_above() -> None:
    runs = parse("s3://bucket/runs")
    assert str(runs / "parts-001" / "job.yaml") == "s3://bucket/runs/parts-001/job.yaml"
    assert (runs / "parts-001").parent == runs
    assert (runs / "parts-001").name == "parts-001"
    assert parse("s3://bucket").name == "bucket"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://host/x", "is not an address of an object store"),
        ("data/x", "is not an address of an object store"),
        ("s3://", "names no bucket"),
        ("s3:///runs", "names no bucket"),
        ("s3://bu cket/runs", "names no bucket"),
        ("s3://bucket:80/runs", "names no bucket"),
        ("s3://bucket/a//b", "an empty name"),
        ("s3://bucket/../b", "an empty name"),
        ("https:///x", "names no host"),
        ("https://host:x/y", "no valid host or port"),
        ("s3://AKIA:hidden@bucket/x", "with a user or password"),
        ("https://host/x?X-Amz-Signature=hidden", "followed by ? or #"),
        ("ftp://me:hidden@host/x?hidden", "is not an address"),
        ("http://host/x", "is not encrypted"),
        ("http://169.254.169.254/latest/meta-data", "is not encrypted"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(BadAddress) as raised:
        parse(text)
    assert message in raised.value.given
    assert raised.value.possible
    assert raised.value.action
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("text", ["data/x", "/data", "hf://datasets/a/b", "c:/x", "s3", "file:///x"])
def test_local(text: str) -> None:
    assert not is_remote(text)
