"""Checks where a rank's process loads CUDA's libraries from.

All must be those of NVIDIA's packages in this environment. Another CUDA on the machine, or a folder in
LD_LIBRARY_PATH, could come first, and of two releases in one process neither is sure to work.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Iterable


def main() -> None:
    """Loads MXNet, Horovod and BytePS; exits non-zero naming what comes from elsewhere."""
    import byteps.mxnet.ops  # noqa: F401
    import horovod.mxnet  # noqa: F401

    site = Path(sysconfig.get_path("platlib")).resolve()
    ours = {file.name for file in (site / "nvidia").glob("*/lib/lib*.so*")}
    loaded = mapped()
    foreign = strays(loaded, ours, site)
    if foreign:
        sys.exit(
            f"CUDA's libraries are loaded from outside {site}: {', '.join(foreign)}; "
            "take their folder out of LD_LIBRARY_PATH"
        )
    print("CUDA's libraries:", " ".join(sorted({file.name for file in loaded if file.name in ours})))


def mapped() -> list[Path]:
    """Files of all libraries in this process, with symbolic links resolved."""
    with open("/proc/self/maps") as maps:
        fields = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    return sorted({Path(each[5]) for each in fields if len(each) == 6 and ".so" in each[5]})


def strays(loaded: Iterable[Path], ours: Iterable[str], site: Path) -> list[str]:
    """Those of the ``loaded`` files that are a release of one of ``ours`` and do not lie below ``site``."""
    stems = {name.split(".so")[0] for name in ours}
    return [str(file) for file in loaded if file.name.split(".so")[0] in stems and site not in file.parents]


if __name__ == "__main__":
    main()
