"""The one exception that means "the user's input is at fault"."""

from __future__ import annotations


class InputError(Exception):
    """Bad input by the user: a flag, a file or their content.

    The message is one line that names the flag or the file and says what to do. The scripts print it and exit
    with code 2.
    """
