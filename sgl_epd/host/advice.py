"""What to tell a user whose worker has died: how it ended, its last lines, and what to do."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from sgl_epd.host.logs import tail
from sgl_epd.host.spec import ProcessSpec

_LINES = 25
_KNOWN: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("address already in use", "is already in use", "errno 98"),
        "Another process took one of its ports. Start again, or choose other ports with --worker-port-base.",
    ),
    (
        ("out of memory", "outofmemoryerror", "not enough memory", "cannot allocate memory"),
        "It ran out of memory. Lower --mem-fraction-static (for one role: --prefill-args, --decode-args), "
        "or start fewer workers.",
    ),
    (
        ("no module named 'sglang'", "cannot import sglang", "no module named 'torch'"),
        "SGLang is not installed in this environment. On a GPU machine: pip install 'sgl-epd[cuda]'.",
    ),
    (
        ("no such folder", "is not a local folder and is not a valid model identifier", "repository not found"),
        "The model was not found. Check --model-path.",
    ),
    (
        ("unrecognized arguments", "launch_server:", "launch_router:"),
        "It did not accept its flags. See the line above; `--dry-run` prints the whole command.",
    ),
)


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}"


def what_to_do(code: int, last_lines: Sequence[str]) -> str:
    """One sentence for the reader of `last_lines`."""
    text = "\n".join(last_lines).lower()
    for needles, sentence in _KNOWN:
        if any(needle in text for needle in needles):
            return sentence
    if code == -signal.SIGKILL:
        return "Nothing in its log says why: most likely the kernel ended it for lack of memory (see `dmesg`)."
    return "Its log says more. To try it by itself, run the command that `--dry-run` prints."


def death_report(spec: ProcessSpec, what_happened: str, code: int) -> str:
    """Several lines: what happened, the end of the log, what to do."""
    last = tail(spec.log_path, _LINES)
    shown = [f"  | {line}" for line in last] or ["  | (it wrote nothing)"]
    return "\n".join([f"{spec.name} {what_happened}. The end of {spec.log_path}:", *shown, what_to_do(code, last)])
