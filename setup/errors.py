"""The one exception by which a stage of the set-up ends it."""

from __future__ import annotations


class SetupError(Exception):
    """The set-up cannot go on. The message is for the user and says what to do."""
