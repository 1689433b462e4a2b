#!/usr/bin/env python3
"""The entry point of a training job on Amazon SageMaker, which the training toolkit's mpirun starts as each
rank.

    python hosts/sagemaker.py ...      # prints the estimator that starts such a job

The toolkit passes hyperparameters as options, --NAME VALUE. Here they are those of a training script of this
project, with these additions:

script          the training script (default run_pretraining_hvd.py)
a flag          True sets it, False leaves it out
channel:NAME/…  in a value: the folder of this input channel, followed by the rest
--ckpt_dir      by default /opt/ml/checkpoints, which SageMaker copies to checkpoint_s3_uri and back
--resume        always: a job that starts again after a spot interruption goes on

Rank 0 copies the last checkpoint's parameters to SM_MODEL_DIR when the run is complete. Every rank announces
the hosts of SM_HOSTS, so that messages name them; SM_CURRENT_HOST is the first host's on all of them, because
mpirun passes its own on. SIGTERM ends with a checkpoint (hosts/sagemaker_train.py hands it on). Over
Horovod only: the toolkit starts nothing of BytePS's. Needs the standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Mapping, Sequence

if __name__ == "__main__":
    # The toolkit has a link to this file in a folder of its own, and may run it through another module.
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from base.errors import InputError
from base.launchers import RUN_HOSTS, launched_rank, number_in
from hosts.launching.saved import look

ROOT = Path(__file__).resolve().parent
CHECKPOINTS = "/opt/ml/checkpoints"
SCRIPT, DEFAULT_SCRIPT = "--script", "run_pretraining_hvd.py"
CKPT_DIR, RESUME = "--ckpt_dir", "--resume"
CHANNEL = "channel:"
SIZE, LOCAL_SIZE = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the training script as this rank; returns its exit code (2 on bad input)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        variables = announced(os.environ)
        command = training_command(words, os.environ)
    except InputError as error:
        print(f"run_sagemaker.py: {error}", file=sys.stderr)
        return 2
    environment = {**os.environ, **variables}
    model_dir = os.environ.get("SM_MODEL_DIR")
    if launched_rank(os.environ) or not model_dir:
        sys.stdout.flush()
        os.execve(command[0], command, environment)
    code = _run(command, environment)
    if code == 0:
        copy_model(command[command.index(CKPT_DIR) + 1], model_dir)
    return code


def training_command(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Interpreter, script and options for the toolkit's options.

    Raises:
        InputError: an option without a value, another script, or a channel that the job has not.
    """
    if len(words) % 2 or any(not name.startswith("--") for name in words[::2]):
        raise InputError(f"{' '.join(words)}: hyperparameters come as pairs, --NAME VALUE; give a flag True")
    script, options = DEFAULT_SCRIPT, []
    given = dict(zip(words[::2], words[1::2]))
    for name, value in given.items():
        if name == SCRIPT:
            script = value
        elif value in ("True", "true"):
            options.append(name)
        elif value not in ("False", "false"):
            options += [name, _with_channels(name, value, environ)]
    if "/" in script or not (ROOT / script).is_file():
        raise InputError(f"{SCRIPT} {script}: there is no such script in this project")
    if CKPT_DIR not in given:
        options += [CKPT_DIR, CHECKPOINTS]
    if RESUME not in options:
        options.append(RESUME)
    python = ROOT / ".venv" / "bin" / "python"
    return [str(python if os.access(python, os.X_OK) else sys.executable), str(ROOT / script), *options]


def announced(environ: Mapping[str, str]) -> dict[str, str]:
    """RUN_HOSTS from SM_HOSTS.

    Raises:
        InputError: SageMaker's variables are missing or contradict mpirun's.
    """
    try:
        hosts = json.loads(environ["SM_HOSTS"])
        current = environ["SM_CURRENT_HOST"]
    except KeyError as error:
        raise InputError(f"{error.args[0]} is not set; SageMaker's training toolkit sets it") from None
    except ValueError:
        raise InputError(f"SM_HOSTS={environ['SM_HOSTS']}: is no JSON list") from None
    if (
        not isinstance(hosts, list)
        or not all(isinstance(host, str) for host in hosts)
        or current not in hosts
    ):
        raise InputError(f"SM_HOSTS={environ['SM_HOSTS']}: must be a list of names, {current} among them")
    size, local = number_in(environ, SIZE), number_in(environ, LOCAL_SIZE)
    if not size and len(hosts) == 1:
        return {}
    if not size:
        raise InputError(
            f"{SIZE} is not set on {len(hosts)} hosts: start the job with MPI (sagemaker_mpi_enabled, as "
            "hosts/sagemaker.py prints it)"
        )
    if size != local * len(hosts):
        raise InputError(f"{SIZE}={size}: {len(hosts)} hosts of SM_HOSTS with {local} ranks each have others")
    return {RUN_HOSTS: ",".join(f"{host}:{local}" for host in hosts)}


def copy_model(ckpt_dir: str, model_dir: str) -> None:
    """Copies the newest checkpoint's parameters and what is needed to use them to SageMaker's folder for the
    model."""
    step = look(ckpt_dir).step
    os.makedirs(model_dir, exist_ok=True)
    for name in (f"{step:07d}.params", f"{step:07d}.json", "run.yaml", "vocab.txt"):
        source = os.path.join(ckpt_dir, name)
        if os.path.isfile(source):
            shutil.copy(source, model_dir)


def _with_channels(flag: str, value: str, environ: Mapping[str, str]) -> str:
    """The value with a folder for each `channel:NAME`."""
    pieces = []
    for piece in value.split(","):
        if piece.startswith(CHANNEL):
            name, slash, rest = piece[len(CHANNEL) :].partition("/")
            folder = environ.get(f"SM_CHANNEL_{name.upper()}")
            if not folder:
                channels = environ.get("SM_CHANNELS", "[]")
                raise InputError(f"{flag} {value}: there is no channel {name}; this job has {channels}")
            piece = f"{folder}{slash}{rest}"
        pieces.append(piece)
    return ",".join(pieces)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs it to its end; signals are for it."""
    received: list[int] = []
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: received.append(number))
    process = subprocess.Popen(command, env=dict(environment))
    while True:
        try:
            code = process.wait(0.1)
            return 128 - code if code < 0 else code
        except subprocess.TimeoutExpired:
            while received:
                process.send_signal(received.pop(0))


if __name__ == "__main__":
    sys.exit(main())
