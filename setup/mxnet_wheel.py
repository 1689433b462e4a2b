"""MXNet 1.9.1 for newer releases of Python and NumPy: its wheel with some lines of its Python files changed.

Its library has no code of either. What its modules ask of them and no longer get is changed in its own files,
so that nothing else in a process sees a difference:

* NumPy 2 has no `PZERO`, `NAN`, `Inf`, `alltrue`, `msort` and the like, 2.4 no `in1d` and `trapz`; NumPy 1.20
  gave the functions of finance away, which MXNet lists as its own.
* Python 3.12 has no `distutils`.
* The wheel demands NumPy below 2.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zipfile
from pathlib import Path

from setup.errors import SetupError

# Of each file: patterns of lines and what takes their place.
CHANGES = {
    "mxnet/numpy/utils.py": {
        r"^bool = onp\.bool$": "bool = bool",
        r"^PZERO = onp\.PZERO$": "PZERO = 0.0",
        r"^NZERO = onp\.NZERO$": "NZERO = -0.0",
        r"^PINF = onp\.PINF$": "PINF = onp.inf",
        r"^NINF = onp\.NINF$": "NINF = -onp.inf",
        r"^(NAN|NaN) = onp\.\w+$": r"\1 = onp.nan",
    },
    "mxnet/numpy/fallback.py": {
        r"^    '(?:mirr|npv|pmt|ppmt|pv|rate)',\n": "",
        r"^(?:mirr|npv|pmt|ppmt|pv|rate) = onp\.\w+\n": "",
        r"^alltrue = onp\.alltrue$": "alltrue = onp.all",
        r"^in1d = onp\.in1d$": "in1d = lambda ar1, *args, **how: onp.isin(onp.ravel(ar1), *args, **how)",
        r"^msort = onp\.msort$": "msort = lambda a: onp.sort(a, axis=0)",
        r"^trapz = onp\.trapz$": "trapz = onp.trapezoid if hasattr(onp, 'trapezoid') else onp.trapz",
    },
    "mxnet/numpy_dispatch_protocol.py": {
        r"^ +from distutils.*\n.* = LooseVersion\(.*\n.* = LooseVersion\(.*\n": "",
        r"if cur_np_ver >= \w+:": "if True:",
        r"^    '(?:sometrue|round_|product)',\n": "",
    },
    "mxnet/numpy_op_fallback.py": {
        r"^from distutils.*\n": "",
        r"if StrictVersion\(np_version\) >= StrictVersion\('1\.6\.0'\):": "if True:",
    },
    "mxnet/gluon/contrib/estimator/event_handler.py": {r"\bnp\.Inf\b": "np.inf"},
    "mxnet/test_utils.py": {r"\bnp\.(bool|int)\b": r"\1"},
    "METADATA": {r"^Requires-Dist: numpy .*$": "Requires-Dist: numpy (>1.16.0)"},
}


def change(downloads: Path) -> None:
    """Puts the changed wheel in the place of MXNet's own in the folder ``downloads``.

    Raises:
        SetupError: there is no such wheel, or its files are not those that this was written for.
    """
    wheels = sorted(downloads.glob("mxnet*-1.9.1-*.whl"))
    if len(wheels) != 1:
        raise SetupError(f"{downloads} has {len(wheels)} wheels of MXNet 1.9.1 instead of one.")
    partial = wheels[0].with_suffix(".partial")
    done: set[str] = set()
    with (
        zipfile.ZipFile(wheels[0]) as old,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        entries = old.read(record).decode()
        for entry in old.infolist():
            name = entry.filename.replace(record[: -len("RECORD")], "")
            content = old.read(entry)
            if name in CHANGES:
                content = _changed(name, content.decode()).encode()
                entries = _recorded(entries, entry.filename, content)
                done.add(name)
            if entry.filename != record:
                new.writestr(entry, content)
        new.writestr(record, entries)
    if done != CHANGES.keys():
        raise SetupError(f"{wheels[0].name} has no {', '.join(sorted(CHANGES.keys() - done))}.")
    os.replace(partial, wheels[0])


def _changed(name: str, text: str) -> str:
    for pattern, new in CHANGES[name].items():
        text, count = re.subn(pattern, new, text, flags=re.MULTILINE)
        if count == 0:
            raise SetupError(f"MXNet's {name} has no line like {pattern}; it is not that of 1.9.1.")
    return text


def _recorded(entries: str, name: str, content: bytes) -> str:
    """The wheel's list of files with the checksum and the size of a changed one."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return re.sub(
        rf"^{re.escape(name)},.*$", f"{name},sha256={digest},{len(content)}", entries, flags=re.MULTILINE
    )
