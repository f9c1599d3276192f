"""Other projects' names for the same functions: libkda.compat.fla, .flash_kda, .attn_gym.

Argument order, defaults and layouts are theirs. What libkda does not have is a RuntimeError that
says so, and an unknown keyword is a TypeError: nothing that is asked for is left out in silence.
"""

from __future__ import annotations

from typing import NoReturn


def refuse(argument: str, was: object, accepted: str) -> NoReturn:
    """An error that reads like those of libkda."""
    raise RuntimeError(f"{argument}: {was}; accepted: {accepted}")
