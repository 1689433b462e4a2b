"""Worker processes: a function called on many jobs at once, with the results in the order of the jobs.

They are started as new interpreters, never forked: the process that trains holds the threads of MPI and
MXNet, and its main module must not be run again. They end with the process that started them, however it
ends. A job that crashes its process (a damaged HDF5 file can) is an error naming the job.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Callable, Generator, Sequence

from base.errors import InputError
from base.processes import end_with_parent, signal_name

JOBS_AHEAD = 2  # jobs a worker that are under way or done and not yet taken
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from base.workers import serve; "
    "serve(*json.loads(sys.argv[2]))"
)
# One thread a worker: there is one worker a core.
_ENVIRONMENT = {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class WorkerCrash(InputError):
    """A worker process ended in the middle of a job; the message names the job and the likely reason."""


def in_order(
    call: Callable[[Any], Any], jobs: Sequence[Any], num_workers: int, memory_limit: int | None = None
) -> Generator[Any, None, None]:
    """Yields `call(job)` for each job, in their order, computed by up to `num_workers` processes.

    `call` and the jobs are pickled; a job's `name` is used in messages. At most two jobs a worker are under
    way or done and not yet taken. `memory_limit` bounds each worker's address space, in bytes.
    Raises what `call` raised if that is an InputError or an OSError, WorkerCrash if a process ended or ran
    out of memory, and RuntimeError with the worker's traceback for anything else. No process is left when the
    iterator ends or is closed.
    """
    workers: list[_Worker] = []
    results: dict[int, Any] = {}
    try:
        count = max(1, min(num_workers, len(jobs)))
        workers.extend(_Worker(count, memory_limit) for _ in range(count))
        for worker in workers:
            worker.send(call)
        idle, busy = list(workers), {}  # type: list[_Worker], dict[Any, _Worker]
        submitted = 0
        for number in range(len(jobs)):
            while number not in results:
                while idle and submitted < min(len(jobs), number + JOBS_AHEAD * count):
                    worker = idle.pop()
                    worker.submit(submitted, jobs[submitted])
                    busy[worker.connection] = worker
                    submitted += 1
                for connection in wait(list(busy)):
                    worker = busy.pop(connection)
                    results[worker.number] = result = worker.receive()
                    if not isinstance(result, WorkerCrash):
                        idle.append(worker)
            result = results.pop(number)
            if isinstance(result, Exception):  # in its turn, so that it is the same for any number of workers
                raise result
            yield result
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One worker process, seen from the process that started it."""

    def __init__(self, num_workers: int, memory_limit: int | None) -> None:
        self.connection, theirs = Pipe()
        self.number, self._name = -1, ""
        # Not in our process group: Ctrl-C is for us to handle, in an orderly way.
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _BOOT),
                json.dumps([os.path.abspath(path) for path in sys.path]),
                json.dumps([theirs.fileno(), os.getpid(), num_workers, memory_limit]),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
        theirs.close()

    def submit(self, number: int, job: Any) -> None:
        """Sends a job. Raises WorkerCrash if the process has ended."""
        self.number, self._name = number, str(getattr(job, "name", f"job {number}"))
        self.send((self._name, job))

    def receive(self) -> Any:
        """The result of the job, or an exception as `in_order` raises it."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return self._crash()

    def end(self) -> None:
        """Kills the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self.connection.close()

    def send(self, message: Any) -> None:
        """Sends the function (first), or a job. Raises WorkerCrash if the process has ended."""
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._crash() from None

    def _crash(self) -> WorkerCrash:
        code = self._process.wait()
        what = f"by {signal_name(-code)}" if code < 0 else f"with exit code {code}"
        if code == -signal.SIGKILL:
            what += " (killed from outside; if the memory ran out, give a smaller --num_workers)"
        return WorkerCrash(f"{self._name or 'start-up'}: its worker process ended {what}")


def serve(descriptor: int, parent: int, num_workers: int, memory_limit: int | None) -> None:
    """The worker's side: receive the function, then jobs until the other side ends."""
    end_with_parent(parent)
    # mpirun may have bound the parent to one core. Cores outside of our control group stay forbidden.
    if num_workers > len(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    if memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    os.dup2(2, 1)  # what a library prints is no result of ours
    connection = Connection(descriptor)
    try:
        call = connection.recv()
        while True:
            name, job = connection.recv()
            connection.send(_answer(call, name, job))
    except (EOFError, ConnectionError):
        return


def _answer(call: Callable[[Any], Any], name: str, job: Any) -> Any:
    """The result of the job, or an exception of a class that the other side has."""
    try:
        return call(job)
    except InputError as error:
        return InputError(str(error))
    except Exception as error:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return WorkerCrash(f"{name}: its worker needs more memory than it may have")
        if isinstance(error, OSError):
            known = (error.errno, error.strerror, error.filename)
            return OSError(str(error)) if error.errno is None else OSError(*known)  # a library's own words
        return RuntimeError(f"a worker failed on {name}:\n{traceback.format_exc()}")
