// Lets ps-lite's receiving threads sleep until there is a message.
//
// There is one for each connection of a worker and one in each server and scheduler. They ask ZeroMQ for a message,
// without waiting, in an endless loop, and they do so under the lock that every sender needs: each burns a core and
// slows down the others. The linker puts the functions below in the place of ZeroMQ's and of pthread_mutex_unlock,
// in BytePS's libraries only (--wrap, see setup/byteps_build.py).
//
// zmq_msg_recv that finds no message marks its thread, and the thread's next pthread_mutex_unlock, which gives up
// that lock, then waits until the socket's file descriptor says that ZeroMQ has something. A thread that sends through
// the same socket may take that notice away (ZeroMQ handles it on the way), so it calls the receiver afterwards.

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

struct zmq_msg_t;

extern "C" {

// Weak, because the same flags also reach links that have no ZeroMQ in them.
__attribute__((weak)) int __real_zmq_msg_recv(zmq_msg_t* message, void* socket, int flags);
__attribute__((weak)) int __real_zmq_msg_send(zmq_msg_t* message, void* socket, int flags);
__attribute__((weak)) int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);
__attribute__((weak)) int zmq_getsockopt(void* socket, int option, void* value, size_t* size);
}

namespace {

constexpr int patience = 50;  // milliseconds, after which the thread looks whether it should end

constexpr int zmq_option_fd = 14;     // ZMQ_FD
constexpr int zmq_flag_dontwait = 1;  // ZMQ_DONTWAIT

constexpr int max_receivers = 1024;  // as many as BytePS allows sockets

struct Receiver {
  std::atomic<void*> socket;
  std::atomic<bool> waiting;
  std::atomic<int> bell;  // 1 + an eventfd, which stays open for the next thread; 0: none yet
};

Receiver receivers[max_receivers];
std::atomic<int> used{0};  // of the array, from its start

// This thread's Receiver, given back when the thread ends.
struct Place {
  Receiver* receiver = nullptr;
  int notices = -1;  // the socket's file descriptor
  bool found_nothing = false;
  Receiver* call = nullptr;  // whom this thread must call when it gives up the lock

  ~Place() { release(); }

  void release() {
    if (!receiver) return;
    receiver->waiting.store(false);
    receiver->socket.store(nullptr);
    receiver = nullptr;
  }
};

thread_local Place place;

bool receives_from(void* socket) {
  if (place.receiver && place.receiver->socket.load() == socket) return true;
  place.release();
  size_t bytes = sizeof place.notices;
  if (zmq_getsockopt(socket, zmq_option_fd, &place.notices, &bytes) != 0) return false;
  for (int i = 0; i < max_receivers; ++i) {
    void* none = nullptr;
    if (!receivers[i].socket.compare_exchange_strong(none, socket)) continue;
    if (receivers[i].bell.load() == 0) receivers[i].bell.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) + 1);
    if (receivers[i].bell.load() == 0) {
      receivers[i].socket.store(nullptr);
      return false;
    }
    int known = used.load();
    while (known < i + 1 && !used.compare_exchange_weak(known, i + 1)) {
    }
    place.receiver = &receivers[i];
    return true;
  }
  return false;
}

void wait_for_message() {
  Receiver& receiver = *place.receiver;
  const int bell = receiver.bell.load() - 1;
  pollfd sources[] = {{place.notices, POLLIN, 0}, {bell, POLLIN, 0}};
  poll(sources, 2, patience);
  receiver.waiting.store(false);
  uint64_t calls;
  if (sources[1].revents != 0 && read(bell, &calls, sizeof calls) != sizeof calls) place.release();
}

}  // namespace

extern "C" int __wrap_zmq_msg_recv(zmq_msg_t* message, void* socket, int flags) {
  const int size = __real_zmq_msg_recv(message, socket, flags);
  if (size == -1 && errno == EAGAIN && (flags & zmq_flag_dontwait)) {
    if (receives_from(socket)) {
      // Still under the lock: whoever sends after us sees that we wait.
      place.receiver->waiting.store(true);
      place.found_nothing = true;
    }
    errno = EAGAIN;
  }
  return size;
}

extern "C" int __wrap_zmq_msg_send(zmq_msg_t* message, void* socket, int flags) {
  const int size = __real_zmq_msg_send(message, socket, flags);
  const int number = used.load();
  for (int i = 0; i < number; ++i) {
    if (receivers[i].socket.load() == socket && receivers[i].waiting.load()) place.call = &receivers[i];
  }
  return size;
}

extern "C" int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  const int result = __real_pthread_mutex_unlock(mutex);
  if (place.found_nothing) {
    place.found_nothing = false;
    const int error = errno;
    wait_for_message();
    errno = error;
  } else if (place.call) {
    Receiver* receiver = place.call;
    place.call = nullptr;
    const uint64_t one = 1;
    const int error = errno;
    // A write fails only where so many calls are unanswered that one more changes nothing.
    if (receiver->waiting.load() && write(receiver->bell.load() - 1, &one, sizeof one) < 0) errno = error;
    errno = error;
  }
  return result;
}
