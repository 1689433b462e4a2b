// Lets the threads of a worker's pipeline sleep until there is work for them.
//
// Each of these threads looks at its queue, sleeps one microsecond, looks again: some nine threads that keep a core
// busy, and on few cores keep it from the training. All work reaches them through four functions of BytePS, in other
// source files than the callers, so that the linker can put those below in their place (--wrap, see
// setup/byteps_build.py). A thread that found nothing then sleeps until its queue was given something.
//
// On x86-64, objects such as shared_ptr are passed and returned by address, so that plain pointers stand for them.

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

// byteps::common::BytePSScheduledQueue::addTask(std::shared_ptr<TensorTableEntry>)
#define ADD_TASK _ZN6byteps6common20BytePSScheduledQueue7addTaskESt10shared_ptrINS0_16TensorTableEntryEE
// std::shared_ptr<TensorTableEntry> byteps::common::BytePSScheduledQueue::getTask()
#define GET_TASK _ZN6byteps6common20BytePSScheduledQueue7getTaskEv
// byteps::common::NcclManager::EnqueueGroup(std::shared_ptr<NcclGroupEntry>)
#define ENQUEUE_GROUP _ZN6byteps6common11NcclManager12EnqueueGroupESt10shared_ptrINS0_14NcclGroupEntryEE
// int byteps::common::ReadyTable::AddReadyCount(uint64_t)
#define ADD_READY_COUNT _ZN6byteps6common10ReadyTable13AddReadyCountEm

#define JOIN(a, b) a##b
#define REAL(name) JOIN(__real_, name)
#define WRAP(name) JOIN(__wrap_, name)

extern "C" {

// Weak, because the servers' library has none of them but nanosleep.
__attribute__((weak)) int __real_nanosleep(const timespec* wanted, timespec* left);
__attribute__((weak)) void REAL(ADD_TASK)(void* queue, void* task);
__attribute__((weak)) void* REAL(GET_TASK)(void* task, void* queue);
__attribute__((weak)) void REAL(ENQUEUE_GROUP)(void* manager, void* group);
__attribute__((weak)) int REAL(ADD_READY_COUNT)(void* table, uint64_t key);
}

// The servers' library has no communicators.
namespace host_runtime {
__attribute__((weak)) void pipeline_started();
}

namespace {

constexpr long poll_pause = 1000;           // nanoseconds: the sleep that means "there was nothing to do"
constexpr long longest = 20 * 1000 * 1000;  // for what comes another way: the end of the run
constexpr long unregistered = 200 * 1000;   // for a thread too many

constexpr int max_threads = 128;
constexpr int max_queues = 2;  // that one thread looks at

// A thread of the pipeline.
struct Sleeper {
  alignas(64) std::atomic<bool> taken;
  std::atomic<uint32_t> calls;
  std::atomic<uint32_t> asleep;
  std::atomic<void*> queues[max_queues];
};

Sleeper sleepers[max_threads];
std::atomic<int> used{0};  // of the array, from its start

// This thread's Sleeper, given back when the thread ends.
struct Place {
  Sleeper* sleeper = nullptr;
  uint32_t seen = 0;  // calls, before the thread last looked for work
  ~Place() {
    if (!sleeper) return;
    for (auto& queue : sleeper->queues) queue.store(nullptr);
    sleeper->taken.store(false);
  }
};

thread_local Place place;

Sleeper* own() {
  if (place.sleeper) return place.sleeper;
  for (int i = 0; i < max_threads; ++i) {
    bool taken = false;
    if (!sleepers[i].taken.compare_exchange_strong(taken, true)) continue;
    int known = used.load();
    while (known < i + 1 && !used.compare_exchange_weak(known, i + 1)) {
    }
    place.seen = sleepers[i].calls.load();
    if (host_runtime::pipeline_started) host_runtime::pipeline_started();
    return place.sleeper = &sleepers[i];
  }
  return nullptr;
}

void call(Sleeper& sleeper) {
  sleeper.calls.fetch_add(1);
  if (sleeper.asleep.load() == 0) return;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&sleeper.calls), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool looks_at(const Sleeper& sleeper, const void* queue) {
  for (const auto& present : sleeper.queues) {
    if (present.load() == queue) return true;
  }
  return false;
}

template <typename Condition>
void call_if(Condition condition) {
  const int number = used.load();
  for (int i = 0; i < number; ++i) {
    if (sleepers[i].taken.load() && condition(sleepers[i])) call(sleepers[i]);
  }
}

}  // namespace

extern "C" int __wrap_nanosleep(const timespec* wanted, timespec* left) {
  if (wanted->tv_sec != 0 || wanted->tv_nsec > poll_pause) return __real_nanosleep(wanted, left);
  Sleeper* sleeper = own();
  if (!sleeper) {
    const timespec pause = {0, unregistered};
    return __real_nanosleep(&pause, left);
  }
  const timespec pause = {0, longest};
  sleeper->asleep.store(1);
  // Returns at once if there was a call since the thread last began to look for work.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&sleeper->calls), FUTEX_WAIT_PRIVATE, place.seen, &pause, nullptr,
          0);
  sleeper->asleep.store(0);
  place.seen = sleeper->calls.load();
  return 0;
}

extern "C" void* WRAP(GET_TASK)(void* task, void* queue) {
  // Before it looks: what is added afterwards calls it.
  Sleeper* sleeper = own();
  if (sleeper && !looks_at(*sleeper, queue)) {
    void* free = nullptr;
    for (auto& present : sleeper->queues) {
      free = nullptr;
      if (present.compare_exchange_strong(free, queue)) break;
    }
  }
  return REAL(GET_TASK)(task, queue);
}

extern "C" void WRAP(ADD_TASK)(void* queue, void* task) {
  REAL(ADD_TASK)(queue, task);
  call_if([queue](const Sleeper& sleeper) { return looks_at(sleeper, queue); });
}

extern "C" void WRAP(ENQUEUE_GROUP)(void* manager, void* group) {
  REAL(ENQUEUE_GROUP)(manager, group);
  // The thread that waits for groups is the one without a queue.
  call_if([](const Sleeper& sleeper) { return looks_at(sleeper, nullptr) && !sleeper.queues[0].load(); });
}

extern "C" int WRAP(ADD_READY_COUNT)(void* table, uint64_t key) {
  const int count = REAL(ADD_READY_COUNT)(table, key);
  // A task that has waited in its queue for the other local ranks: in which queue is not known here.
  call_if([](const Sleeper&) { return true; });
  return count;
}
