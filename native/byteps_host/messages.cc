// Frees what ps-lite keeps of every message that it has received.
//
// Its receiving threads (ZMQVan::CallZmqRecvThread) take a zmq_msg_t for a message's description and a context that
// names all its parts, and give a copy of the context to the thread that handles messages (ZMQVan::RecvMsg). Neither
// the description nor the context is ever freed: 315 bytes a message, two messages a sum in a worker and two for each
// worker in a server. A run of BERT-base would lose 100 KB a step.
//
// The second frame of a message is its description. The thread that handles messages copies it before it asks for
// the next one: then it can go. A context is copied before its thread takes the next one: so can it.
//
// The linker puts the functions below in the place of ZeroMQ's and of operator new, in BytePS's libraries only.

#include "messages.h"

#include <cstddef>
#include <mutex>
#include <new>
#include <unordered_set>
#include <vector>

extern "C" {

// Weak, because the same flags also reach links that have no ZeroMQ in them.
__attribute__((weak)) void* __real_zmq_msg_data(zmq_msg_t* message);
__attribute__((weak)) int zmq_msg_more(zmq_msg_t* message);
__attribute__((weak)) int zmq_msg_close(zmq_msg_t* message);
void* __real__Znwm(size_t bytes);
}

namespace {

// As ps-lite has it (ZmqBufferContext in zmq_van.h).
struct Context {
  int sender;
  zmq_msg_t* description;
  std::vector<zmq_msg_t*> data;
};

// A thread that receives: its place in the message of which it takes the frames.
struct Receiving {
  bool does = false;
  bool inside_zeromq = false;
  size_t frames = 0;       // of the present message
  size_t last_frames = 0;  // of the one before
  Context* context = nullptr;
};

thread_local Receiving receiving;
thread_local zmq_msg_t* handled = nullptr;  // the description that this thread reads

std::mutex guard;
std::unordered_set<zmq_msg_t*> unread;  // descriptions

}  // namespace

namespace messages {

void before_receiving() {
  receiving.does = true;
  receiving.inside_zeromq = true;
}

void after_receiving(zmq_msg_t* message, bool received) {
  receiving.inside_zeromq = false;
  if (!received) return;
  if (receiving.frames == 1) {
    const std::lock_guard<std::mutex> lock(guard);
    unread.insert(message);
  }
  ++receiving.frames;
  if (zmq_msg_more(message)) return;
  receiving.last_frames = receiving.frames;
  receiving.frames = 0;
}

}  // namespace messages

extern "C" void* __wrap_zmq_msg_data(zmq_msg_t* message) {
  if (!receiving.does) {
    bool description;
    {
      const std::lock_guard<std::mutex> lock(guard);
      description = unread.erase(message) != 0;
    }
    if (description) {
      if (handled) {
        zmq_msg_close(handled);
        ::operator delete(handled);
      }
      handled = message;
    }
  }
  return __real_zmq_msg_data(message);
}

// operator new(size_t). Between two messages a receiving thread takes a context, and nothing else of its size: its
// copy of the one before has a list of fewer parts (keys, values, lengths).
extern "C" void* __wrap__Znwm(size_t bytes) {
  void* const memory = __real__Znwm(bytes);
  const size_t list = receiving.last_frames > 2 ? (receiving.last_frames - 2) * sizeof(void*) : 0;
  if (bytes == sizeof(Context) && receiving.does && !receiving.inside_zeromq && receiving.frames == 0 &&
      list != bytes) {
    Context* const before = receiving.context;
    receiving.context = static_cast<Context*>(memory);
    if (before) delete before;
  }
  return memory;
}
