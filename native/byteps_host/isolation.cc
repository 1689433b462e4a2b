// Keeps the runs of one host apart and leaves nothing behind.
//
// BytePS names its shared memory by a tensor's number alone and its sockets by the local rank alone, so two workers
// on one host take each other's, and it leaves both in /dev/shm and /tmp. The linker replaces the functions below in
// BytePS's libraries (--wrap, see setup/byteps_build.py); other names and addresses than BytePS's own pass through.
//
// - Shared memory is anonymous. With several local ranks the first one makes it and the others find it through
//   their communicator (shared.h).
// - Sockets get addresses in Linux's abstract namespace, which vanish with their process. Their names are made of
//   the user, the worker and the run. A worker of one local rank is the only one to use its address, a random one.
//   Otherwise a run is known by BYTEPS_RUN_ID, any text that a launcher gives to all its ranks, and by
//   BYTEPS_SOCKET_PATH and the scheduler's address. A run of one worker without the first two is known by its
//   process group, unless each rank leads one of its own.

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

extern "C" {

// Weak, because the same flags also reach links that lack some of these calls.
__attribute__((weak)) int __real_shm_open(const char* name, int flags, mode_t mode);
__attribute__((weak)) int __real_shm_unlink(const char* name);
__attribute__((weak)) int __real_bind(int socket, const sockaddr* address, socklen_t length);
__attribute__((weak)) ssize_t __real_sendto(int socket, const void* data, size_t bytes, int flags,
                                            const sockaddr* address, socklen_t length);
__attribute__((weak)) int __real_setsockopt(int socket, int level, int option, const void* value,
                                            socklen_t length);
__attribute__((weak)) int __real_unlink(const char* path);
__attribute__((weak)) int __real_remove(const char* path);
}

// The servers' library has no communicators.
namespace host_runtime {
__attribute__((weak)) int open_among_ranks(uint64_t name, const char* label);
__attribute__((weak)) void wait_for_pipeline();
}

namespace {

constexpr char memory_prefix[] = "BytePS_ShM_";
constexpr char switch_prefix[] = "BytePS_Pcie";
constexpr char default_folder[] = "/tmp";
constexpr long retry_pause = 5 * 1000000;  // nanoseconds
constexpr int retries = 200;               // a second in all, what BytePS itself would sleep
constexpr long listen_pause = 100 * 1000;  // microseconds

bool starts_with(const char* text, const char* start) { return strncmp(text, start, strlen(start)) == 0; }

bool is_memory(const char* name) { return starts_with(name, memory_prefix) || starts_with(name, switch_prefix); }

const char* variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

int local_size() {
  const int size = atoi(variable("BYTEPS_LOCAL_SIZE"));
  return size < 1 ? 1 : size;
}

// "send_0", "recv_nccl1" and so on in BytePS's paths; null for any other path.
const char* socket_suffix(const char* path) {
  const char* folder = getenv("BYTEPS_SOCKET_PATH");
  if (!folder) folder = default_folder;
  const size_t length = strlen(folder);
  if (strncmp(path, folder, length) != 0) return nullptr;
  for (const char* kind : {"/socket_send_", "/socket_recv_"}) {
    if (starts_with(path + length, kind)) return path + length + strlen("/socket_");
  }
  return nullptr;
}

uint64_t mix(uint64_t hash, const char* text) {
  // FNV-1a, the terminating zero included.
  do {
    hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
  } while (*text++);
  return hash;
}

uint64_t random_word() {
  uint64_t word = 0;
  if (getrandom(&word, sizeof word, 0) != sizeof word) abort();
  return word;
}

uint64_t run_hash() {
  if (local_size() == 1) {
    static const uint64_t own = random_word();
    return own;
  }
  uint64_t hash = 0xcbf29ce484222325;
  for (const char* name : {"BYTEPS_RUN_ID", "BYTEPS_SOCKET_PATH", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"}) {
    hash = mix(hash, variable(name));
  }
  const bool alone = atoi(variable("DMLC_NUM_WORKER")) <= 1;
  if (alone && !*variable("BYTEPS_RUN_ID") && !*variable("BYTEPS_SOCKET_PATH") && getpgrp() != getpid()) {
    char group[16];
    snprintf(group, sizeof group, "%d", int(getpgrp()));
    hash = mix(hash, group);
  }
  return hash;
}

// BytePS's address in the abstract namespace; false for any other address.
bool translate(const sockaddr* address, socklen_t length, sockaddr_un* result, socklen_t* result_length) {
  if (!address || length < sizeof(sa_family_t) + 2 || address->sa_family != AF_UNIX) return false;
  char path[sizeof(sockaddr_un::sun_path) + 1] = {};
  const size_t given = length - offsetof(sockaddr_un, sun_path);
  memcpy(path, reinterpret_cast<const sockaddr_un*>(address)->sun_path,
         given < sizeof path - 1 ? given : sizeof path - 1);
  const char* suffix = socket_suffix(path);
  if (!suffix) return false;
  memset(result, 0, sizeof *result);
  result->sun_family = AF_UNIX;
  const int written =
      snprintf(result->sun_path + 1, sizeof result->sun_path - 1, "byteps-%u-%016llx-%s-%s", unsigned(getuid()),
               static_cast<unsigned long long>(run_hash()), variable("DMLC_WORKER_ID"), suffix);
  *result_length = offsetof(sockaddr_un, sun_path) + 1 + written;
  return true;
}

// BytePS cuts a path that is too long, and the local rank at its end with it.
bool is_cut(const sockaddr* address, socklen_t length) {
  if (!address || length != sizeof(sockaddr_un) || address->sa_family != AF_UNIX) return false;
  const char* path = reinterpret_cast<const sockaddr_un*>(address)->sun_path;
  const size_t longest = sizeof(sockaddr_un::sun_path) - 1;
  const char* folder = variable("BYTEPS_SOCKET_PATH");
  const size_t compared = strlen(folder) < longest ? strlen(folder) : longest;
  return strnlen(path, longest) == longest && *folder && strncmp(path, folder, compared) == 0;
}

}  // namespace

extern "C" int __wrap_shm_open(const char* name, int flags, mode_t mode) {
  if (!is_memory(name)) return __real_shm_open(name, flags, mode);
  if (local_size() == 1) return memfd_create(name, MFD_CLOEXEC);
  if (starts_with(name, switch_prefix)) {
    fprintf(stderr,
            "byteps: this build joins all local ranks in one group; set BYTEPS_PCIE_SWITCH_SIZE to their number, "
            "%d\n",
            local_size());
    errno = ENOTSUP;
    return -1;
  }
  if (!host_runtime::open_among_ranks) {
    errno = ENOSYS;
    return -1;
  }
  // Never 0, which means no name.
  const int file = host_runtime::open_among_ranks(strtoull(name + strlen(memory_prefix), nullptr, 10) + 1, name);
  if (file < 0) {
    const int error = errno;
    fprintf(stderr, "byteps: %s cannot be had (%s); is there a local rank whose process has ended?\n", name,
            strerror(error));
    errno = error;
  }
  return file;
}

extern "C" int __wrap_shm_unlink(const char* name) { return is_memory(name) ? 0 : __real_shm_unlink(name); }

extern "C" int __wrap_bind(int socket, const sockaddr* address, socklen_t length) {
  if (is_cut(address, length)) {
    errno = ENAMETOOLONG;
    return -1;
  }
  sockaddr_un abstract;
  socklen_t abstract_length;
  if (!translate(address, length, &abstract, &abstract_length)) return __real_bind(socket, address, length);
  return __real_bind(socket, reinterpret_cast<const sockaddr*>(&abstract), abstract_length);
}

extern "C" ssize_t __wrap_sendto(int socket, const void* data, size_t bytes, int flags, const sockaddr* address,
                                 socklen_t length) {
  sockaddr_un abstract;
  socklen_t abstract_length;
  if (!translate(address, length, &abstract, &abstract_length)) {
    return __real_sendto(socket, data, bytes, flags, address, length);
  }
  // The root listens before it has made the tables that it counts signals in, and would crash on one that comes
  // so early. (It sends the first message itself, when there is no communicator yet.)
  if (host_runtime::wait_for_pipeline) host_runtime::wait_for_pipeline();
  // The other rank may not have begun to listen. BytePS would sleep for a second before it tries again.
  for (int attempt = 0;; ++attempt) {
    const ssize_t sent =
        __real_sendto(socket, data, bytes, flags, reinterpret_cast<const sockaddr*>(&abstract), abstract_length);
    if (sent >= 0 || (errno != ECONNREFUSED && errno != ENOENT) || attempt == retries) return sent;
    const timespec pause = {0, retry_pause};
    nanosleep(&pause, nullptr);
  }
}

extern "C" int __wrap_setsockopt(int socket, int level, int option, const void* value, socklen_t length) {
  if (level == SOL_SOCKET && option == SO_RCVTIMEO && length == sizeof(timeval)) {
    sockaddr_un own;
    socklen_t own_length = sizeof own;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 && own.sun_family == AF_UNIX) {
      // Its listeners look every three seconds whether they should end, so that a run's end took as long.
      const timeval pause = {0, listen_pause};
      return __real_setsockopt(socket, level, option, &pause, sizeof pause);
    }
  }
  return __real_setsockopt(socket, level, option, value, length);
}

extern "C" int __wrap_unlink(const char* path) { return socket_suffix(path) ? 0 : __real_unlink(path); }

extern "C" int __wrap_remove(const char* path) { return socket_suffix(path) ? 0 : __real_remove(path); }
