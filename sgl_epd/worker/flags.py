"""Reading and completing a list of SGLang flags without importing SGLang.

SGLang's own parser is the judge of every flag; here we only need to know whether the user already decided something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def given(argv: Sequence[str], *names: str) -> bool:
    """True if one of the flags `names` (`--port`) stands in `argv`, alone or as `--port=1`."""
    return any(arg in names or arg.split("=", 1)[0] in names for arg in argv if arg.startswith("-"))


def value(argv: Sequence[str], *names: str) -> str | None:
    """The last value given for one of the flags `names`, or None if none of them is there (or has no value)."""
    found = None
    for index, arg in enumerate(argv):
        head, equals, tail = arg.partition("=")
        if head not in names:
            continue
        if equals:
            found = tail
        elif index + 1 < len(argv) and not argv[index + 1].startswith("--"):
            found = argv[index + 1]
    return found


def complete(argv: Sequence[str], defaults: Iterable[Sequence[str]]) -> list[str]:
    """`argv` plus those of `defaults` (each a flag with its values) that it does not set itself."""
    result = list(argv)
    for flag in defaults:
        if not given(argv, flag[0]):
            result.extend(flag)
    return result
