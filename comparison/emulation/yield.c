/* Preloaded into Open MPI's ranks on emulated hosts: a rank that waits gives its processor away for 100
   microseconds. On a cluster it has a processor of its own and polls without a pause (mpi_yield_when_idle);
   here the ranks of all hosts share a few, and pauses also let the time that others wait for one be measured. */

#include <time.h>

int sched_yield(void) {
  const struct timespec pause = {0, 100000};
  return nanosleep(&pause, 0);
}
