#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace host_runtime {

namespace {

constexpr uint64_t magic = 0x6c63636e74736f68;
constexpr int spins = 300;                      // some microseconds, then sleep: cores are few
constexpr long check_interval = 500 * 1000000;  // nanoseconds between two looks whether the others still exist

// What a unique id holds.
struct Address {
  uint64_t magic;
  uint64_t nonce;
  int32_t process;
  int32_t descriptor;
};
static_assert(sizeof(Address) <= NCCL_UNIQUE_ID_BYTES, "the address must fit into an id");
static_assert(sizeof(std::atomic<uint64_t>) == 8 && sizeof(std::atomic<uint32_t>) == 4, "shared between processes");

constexpr int32_t joining = -1;  // in place of a process that is about to say who it is
constexpr size_t page = 4096;
constexpr size_t control_bytes = (sizeof(Control) + page - 1) / page * page;

constexpr size_t total_bytes(int ranks) { return control_bytes + 2 * staging_bytes * ranks; }

thread_local char message[512];
std::atomic<Shared*> latest_joined{nullptr};

void futex_wait(std::atomic<uint32_t>* word, uint32_t value, long nanoseconds) {
  const timespec time = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// When a process started, in clock ticks since boot: 0 if there is none of that number, or it has ended and only
// waits for its parent.
uint64_t start_of(int process) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[1024];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = 0;
  // The command's name, in parentheses, may contain anything.
  const char* field = strrchr(text, ')');
  if (!field) return 0;
  field += 2;
  if (*field == 'Z' || *field == 'X') return 0;
  for (int i = 3; i < 22 && field; ++i) {
    field = strchr(field, ' ');
    if (field) ++field;
  }
  return field ? strtoull(field, nullptr, 10) : 0;
}

int open_of_process(int process, int descriptor) {
  char path[64];
  if (process == getpid()) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  } else {
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, descriptor);
  }
  return open(path, O_RDWR | O_CLOEXEC);
}

}  // namespace

ncclResult_t fail(ncclResult_t result, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return result;
}

const char* failure() { return message; }

void pipeline_started() {
  Shared* shared = latest_joined.load();
  if (shared) shared->started();
}

void wait_for_pipeline() {
  Shared* shared = latest_joined.load();
  if (shared) shared->wait_until_started();
}

int open_among_ranks(uint64_t name, const char* label) {
  Shared* shared = latest_joined.load();
  if (shared) return shared->open_named(name, label);
  errno = ENOTCONN;
  return -1;
}

ncclResult_t Shared::create(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  Address address = {magic, 0, getpid(), -1};
  if (getrandom(&address.nonce, sizeof address.nonce, 0) != sizeof address.nonce) {
    return fail(ncclSystemError, "no random number from the system: %s", strerror(errno));
  }
  address.descriptor = memfd_create("nccl", MFD_CLOEXEC);
  if (address.descriptor < 0) {
    return fail(ncclSystemError, "no memory for a communicator (memfd_create): %s", strerror(errno));
  }
  // Pages come into being when they are written; the size is for the largest communicator.
  if (ftruncate(address.descriptor, total_bytes(max_ranks)) != 0 ||
      pwrite(address.descriptor, &address.nonce, sizeof address.nonce, offsetof(Control, nonce)) !=
          ssize_t(sizeof address.nonce)) {
    const int error = errno;
    close(address.descriptor);
    return fail(ncclSystemError, "no memory for a communicator: %s", strerror(error));
  }
  memcpy(id->internal, &address, sizeof address);
  return ncclSuccess;
}

ncclResult_t Shared::join(const ncclUniqueId& id, int ranks, int rank, Shared** result) {
  Address address;
  memcpy(&address, id.internal, sizeof address);
  if (address.magic != magic) return fail(ncclInvalidArgument, "this is no id from ncclGetUniqueId");
  const bool creator = address.process == getpid();
  const int file = open_of_process(address.process, address.descriptor);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0 || size_t(status.st_size) != total_bytes(max_ranks)) {
    const int error = file < 0 ? errno : EINVAL;
    if (file >= 0) close(file);
    return fail(ncclSystemError,
                "rank %d cannot open the memory of process %d (%s); has it ended? All local ranks must run as one "
                "user, in one PID namespace",
                rank, address.process, strerror(error));
  }
  void* memory = mmap(nullptr, total_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return fail(ncclSystemError, "mmap: %s", strerror(errno));
  Control* control = static_cast<Control*>(memory);
  Shared* shared = new Shared(control, static_cast<char*>(memory) + control_bytes, ranks, rank, creator);
  if (control->nonce != address.nonce) {
    delete shared;
    return fail(ncclSystemError, "the communicator of process %d is gone", address.process);
  }
  int32_t expected = 0;
  if (!control->ranks.compare_exchange_strong(expected, ranks) && expected != ranks) {
    delete shared;
    return fail(ncclInvalidUsage, "rank %d joins a communicator of %d ranks as one of %d", rank, expected, ranks);
  }
  Slot& slot = control->slots[rank];
  expected = 0;
  if (!slot.process.compare_exchange_strong(expected, joining)) {
    delete shared;
    return fail(ncclInvalidUsage, "rank %d has joined already (process %d)", rank, expected);
  }
  slot.started = start_of(getpid());
  slot.process.store(getpid());
  const ncclResult_t met = shared->wait_for_all();
  if (creator) close(address.descriptor);
  if (met != ncclSuccess) {
    delete shared;
    return met;
  }
  latest_joined.store(shared);
  *result = shared;
  return ncclSuccess;
}

Shared::~Shared() {
  Shared* self = this;
  latest_joined.compare_exchange_strong(self, nullptr);
  munmap(control_, total_bytes(ranks_));
}

ncclResult_t Shared::meet(const Operation& operation) {
  const int turn = round_ & 1;
  control_->slots[rank_].announced[turn] = operation;
  const ncclResult_t met = wait_for_all();
  if (met != ncclSuccess) return met;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Operation& other = control_->slots[rank].announced[turn];
    if (memcmp(&other, &operation, sizeof operation) != 0) {
      broken_ = true;
      return fail(ncclInvalidUsage,
                  "ranks %d and %d differ in their operation: kind %u and %u, type %u and %u, root %d and %d, "
                  "count %llu and %llu",
                  rank_, rank, operation.kind, other.kind, operation.type, other.type, operation.root, other.root,
                  static_cast<unsigned long long>(operation.count), static_cast<unsigned long long>(other.count));
    }
  }
  return ncclSuccess;
}

ncclResult_t Shared::wait_for_all() {
  if (broken_) return fail(ncclRemoteError, "this communicator has failed before");
  std::atomic<uint32_t>& generation = control_->generation;
  const uint32_t before = generation.load();
  if (control_->arrived.fetch_add(1) + 1 == uint32_t(ranks_)) {
    control_->arrived.store(0);
    generation.fetch_add(1);
    if (control_->asleep.load() != 0) futex_wake_all(&generation);
    return ncclSuccess;
  }
  for (int i = 0; i < spins; ++i) {
    if (generation.load(std::memory_order_acquire) != before) return ncclSuccess;
    __builtin_ia32_pause();
  }
  timespec began;
  clock_gettime(CLOCK_MONOTONIC, &began);
  while (true) {
    control_->asleep.fetch_add(1);
    futex_wait(&generation, before, check_interval);
    control_->asleep.fetch_sub(1);
    if (generation.load() != before) return ncclSuccess;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((now.tv_sec - began.tv_sec) * 1000000000L + now.tv_nsec - began.tv_nsec < check_interval) continue;
    began = now;
    int gone = control_->gone.load() - 1;
    if (gone < 0) gone = find_gone();
    if (gone < 0) continue;
    // It may have been the last to arrive, and have ended in order after that.
    if (generation.load() != before) return ncclSuccess;
    return lost(gone);
  }
}

int Shared::find_gone() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const Slot& slot = control_->slots[rank];
    const int process = slot.process.load();
    if (process > 0 && rank != rank_ && start_of(process) != slot.started) return rank;
  }
  return -1;
}

ncclResult_t Shared::lost(int rank) {
  broken_ = true;
  int32_t none = 0;
  control_->gone.compare_exchange_strong(none, rank + 1);
  return fail(ncclRemoteError, "local rank %d waits for local rank %d, whose process %d has ended", rank_, rank,
              control_->slots[rank].process.load());
}

void Shared::started() {
  if (creator_) control_->running.store(1);
}

void Shared::wait_until_started() const {
  for (int waited = 0; !creator_ && control_->running.load() == 0; ++waited) {
    if (waited % 500 == 499 && find_gone() >= 0) return;
    const timespec pause = {0, 1000000};
    syscall(SYS_nanosleep, &pause, nullptr);
  }
}

int Shared::open_named(uint64_t name, const char* label) {
  for (int i = 0; i < max_names; ++i) {
    Name& entry = control_->names[(name + i) % max_names];
    uint64_t present = 0;
    if (entry.name.compare_exchange_strong(present, name)) {
      const int file = memfd_create(label, MFD_CLOEXEC);
      if (file >= 0) entry.place.store(uint64_t(getpid()) << 32 | uint32_t(file + 1));
      return file;
    }
    if (present != name) continue;
    // Another rank is about to make it, which takes microseconds; waiting for it in a finer way is not worthwhile.
    uint64_t place = 0;
    for (int waited = 0; (place = entry.place.load()) == 0; ++waited) {
      if (waited % 5000 == 4999 && find_gone() >= 0) {
        errno = EOWNERDEAD;
        return -1;
      }
      const timespec pause = {0, 100000};
      syscall(SYS_nanosleep, &pause, nullptr);
    }
    return open_of_process(int(place >> 32), int(uint32_t(place)) - 1);
  }
  errno = ENOSPC;
  return -1;
}

}  // namespace host_runtime
