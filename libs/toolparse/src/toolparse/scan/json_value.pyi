from typing import Final

MAX_DEPTH: Final[int]
MAX_DIGITS: Final[int]

def json_value(
    data: bytes | bytearray, pos: int, n: int
) -> tuple[int, int, int, list[tuple[int, int, int, int]]]: ...
