"""Where keys stand in a TOML text."""

from __future__ import annotations

from flashd.config_positions import Position, position_of, positions

TEXT = '''\
a = 1
  b.c = "x = 1"   # d = 2
"quoted key" = 'y'
[t]
e = [
  "f = 1", # g = 1
  { h = 1 },
]
i = """
j = 1
[k]
\\""" """
l = \'\'\'
m = 1\'\'\'
n = { o = [1,
 2] }
[ p . "q" ]
r = """one""" # s = """
u = "\\"[" # [
v = ""
[[w]]
x = 1
'''


def test_keys_of_lines_are_found_and_text_inside_values_is_not() -> None:
    found = positions(TEXT)
    assert found == {
        ("a",): Position(1, 1),
        ("b",): Position(2, 3),
        ("b", "c"): Position(2, 3),
        ("quoted key",): Position(3, 1),
        ("t",): Position(4, 1),
        ("t", "e"): Position(5, 1),
        ("t", "i"): Position(9, 1),
        ("t", "l"): Position(13, 1),
        ("t", "n"): Position(15, 1),
        ("p",): Position(17, 1),
        ("p", "q"): Position(17, 1),
        ("p", "q", "r"): Position(18, 1),
        ("p", "q", "u"): Position(19, 1),
        ("p", "q", "v"): Position(20, 1),
        ("w",): Position(21, 1),
        ("w", "x"): Position(22, 1),
    }


def test_a_key_without_a_line_stands_where_its_table_does() -> None:
    found = positions(TEXT)
    assert position_of(("t", "n", "o"), found) == Position(15, 1)
    assert position_of(("t", "missing"), found) == Position(4, 1)
    assert position_of(("nowhere",), found) == Position(1, 1)
