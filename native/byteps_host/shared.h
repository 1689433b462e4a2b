// The memory that the processes of one communicator share: where they stage data, wait for each other, and find
// further memory by name. Names in /dev/shm are not used, so that nothing can collide or be left behind: the memory
// is anonymous (memfd) and the others open it as /proc/<process>/fd/<descriptor>. It goes when the last process
// goes, however that ends.
#pragma once

#include <nccl.h>
#include <stdint.h>

#include <atomic>

namespace host_runtime {

constexpr int max_ranks = 64;
constexpr size_t staging_bytes = 512 * 1024;  // of one rank in one round
constexpr int max_names = 8192;

// What a rank is about to do; the others compare it with their own.
struct Operation {
  uint32_t kind;
  uint32_t type;
  int32_t root;
  uint32_t unused;
  uint64_t count;
};

struct Slot {
  alignas(64) std::atomic<int32_t> process;  // 0 until the rank has joined
  uint64_t started;                          // with the number it identifies a process for good
  Operation announced[2];
};

struct Name {
  std::atomic<uint64_t> name;   // 0: free
  std::atomic<uint64_t> place;  // process << 32 | descriptor + 1; 0 until it exists
};

struct Control {
  uint64_t nonce;
  std::atomic<int32_t> ranks;
  std::atomic<int32_t> gone;  // 1 + the rank whose process was first found to be gone
  std::atomic<int32_t> running;  // whether the creator's pipeline has started
  alignas(64) std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  std::atomic<uint32_t> asleep;
  Slot slots[max_ranks];
  Name names[max_names];
};

// Notes why a call fails, for ncclGetErrorString in this thread, and returns `result`.
ncclResult_t fail(ncclResult_t result, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* failure();

class Shared {
 public:
  // The creator's part: memory for a communicator of any size, and how to find it.
  static ncclResult_t create(ncclUniqueId* id);

  // Joins as `rank`; returns when all ranks have joined.
  static ncclResult_t join(const ncclUniqueId& id, int ranks, int rank, Shared** result);

  ~Shared();

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }

  // A round: stage data in own(), meet(), read what the others staged. Two buffers take turns, so the next round
  // may begin while others still read: nobody comes to the round after it before all have come to the next.
  char* own() const { return staged(rank_); }
  const char* of(int rank) const { return staged(rank); }
  ncclResult_t meet(const Operation& operation);
  void end_round() { ++round_; }

  // The descriptor of the memory called `name`, made by the first rank that asks for it. -1 and errno on failure.
  int open_named(uint64_t name, const char* label);

  // The creator says that its pipeline runs; the others wait for that, or until somebody is gone.
  void started();
  void wait_until_started() const;

 private:
  Shared(Control* control, char* staging, int ranks, int rank, bool creator)
      : control_(control), staging_(staging), ranks_(ranks), rank_(rank), creator_(creator) {}
  char* staged(int rank) const { return staging_ + (2 * rank + (round_ & 1)) * staging_bytes; }
  ncclResult_t wait_for_all();
  ncclResult_t lost(int rank);
  int find_gone() const;

  Control* control_;
  char* staging_;
  int ranks_;
  int rank_;
  bool creator_;
  uint64_t round_ = 0;
  bool broken_ = false;
};

// Shared::open_named in the latest communicator that this process has joined; -1 and ENOTCONN if there is none.
int open_among_ranks(uint64_t name, const char* label);

// Shared::started and Shared::wait_until_started there; without a communicator they do nothing.
void pipeline_started();
void wait_for_pipeline();

}  // namespace host_runtime
