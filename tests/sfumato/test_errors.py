"""What an error says in one line."""

import pytest

from sfumato.errors import BadInput, Unnamed, first_line, in_full, one_line, without_passwords


def test_the_first_line_of_an_error_or_its_kind_where_it_says_nothing():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(KeyError()) == "KeyError" and one_line(EOFError()) == "EOFError"
    assert one_line(ValueError("cut\n  off")) == "cut off"


def test_only_the_full_line_names_a_private_file():
    error = Unnamed("a file cannot be read", "ward/smith.png cannot be read")
    assert str(error) == "a file cannot be read" and in_full(error) == "ward/smith.png cannot be read"
    assert in_full(BadInput("no file is private")) == "no file is private"


@pytest.mark.parametrize(
    ("url", "without"),
    [
        ("https://keeper:secret@host:5000/x", "https://host:5000/x"),
        ("sftp://keeper:of@secret@host/x", "sftp://host/x"),
        ("postgresql://keeper:of/secret@host/x", "postgresql://host/x"),
        ("https://host:5000/mail@folder", "https://host:5000/mail@folder"),
        ("s3://bucket/mail@folder", "s3://bucket/mail@folder"),
        ("file:///mnt/a:b@c", "file:///mnt/a:b@c"),
        ("postgresql://host/x?user=keeper&password=of&port=5", "postgresql://host/x?user=keeper&password=***&port=5"),
        (
            "postgresql://keeper:secret@host/x?sslmode=require&sslPassword=a/b@c",
            "postgresql://host/x?sslmode=require&sslPassword=***",
        ),
        ("https://host/x?access_token=secret): set", "https://host/x?access_token=*** set"),
        ("postgresql://host?password=of@secret", "postgresql://host?password=***"),
        ("https://host/x?sslkey=file&passfile=file", "https://host/x?sslkey=file&passfile=file"),
        ("what is the password=, and a token=?", "what is the password=, and a token=?"),
    ],
)
def test_user_and_secrets_are_taken_out_of_an_address_and_nothing_else(url, without):
    assert without_passwords(url) == without
