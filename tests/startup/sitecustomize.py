"""Read by Python when it starts, in processes of tests (tests/processes.py): leaves out the picture at the
end of a training run, which takes a third of a run of seconds. PICTURES in the environment has it drawn."""

from __future__ import annotations

import os
import sys


class WithoutPicture:
    """Finds training.report, and replaces its `plot_losses` once it is loaded."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """None for all other modules."""
        if name != "training.report":
            return None
        import importlib.util  # here, for it is not in every process

        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            module.plot_losses = lambda directory, panels: os.path.join(directory, "loss.png")

        spec.loader.exec_module = loaded
        return spec


if "PICTURES" not in os.environ:
    sys.meta_path.insert(0, WithoutPicture)
