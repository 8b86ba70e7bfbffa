"""What an error says in one line."""

from sfumato.errors import BadInput, Unnamed, first_line, in_full, one_line


def test_the_first_line_of_an_error_or_its_kind_where_it_says_nothing():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(KeyError()) == "KeyError" and one_line(EOFError()) == "EOFError"
    assert one_line(ValueError("cut\n  off")) == "cut off"


def test_only_the_full_line_names_a_private_file():
    error = Unnamed("a file cannot be read", "ward/smith.png cannot be read")
    assert str(error) == "a file cannot be read" and in_full(error) == "ward/smith.png cannot be read"
    assert in_full(BadInput("no file is private")) == "no file is private"
