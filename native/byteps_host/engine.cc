// Keeps an exchange's arguments alive until the function that started it has returned.
//
// byteps::mxnet::DoPushPull gives a tensor to the pipeline and then still asks for its size, to check what it gave.
// When the pipeline is done first, MXNet has deleted the tensor by then: the worker reads freed memory, and mostly
// ends with "accumulated partition size not equal to original tensor size". Small tensors on few cores, where
// threads are interrupted at any place, meet this within seconds.
//
// The linker replaces MXNet's function in BytePS's libraries (--wrap, see setup/byteps_build.py).

#include <atomic>
#include <memory>

typedef void (*Function)(void* run_context, void* on_complete, void* parameter);
typedef void (*Deleter)(void* parameter);

extern "C" {

// Weak, because the servers' library does not use MXNet.
__attribute__((weak)) int __real_MXEnginePushAsync(Function function, void* parameter, Deleter deleter, void* context,
                                                   void* const_vars, int num_const_vars, void* mutable_vars,
                                                   int num_mutable_vars, void* property, int priority,
                                                   const char* name, bool wait);
}

namespace {

// A parameter with two users: MXNet's engine, and the function while it runs.
struct Shared {
  Function function;
  void* parameter;
  Deleter deleter;
  std::atomic<int> users;
};

void leave(void* pointer) {
  Shared* shared = static_cast<Shared*>(pointer);
  if (shared->users.fetch_sub(1) != 1) return;
  shared->deleter(shared->parameter);
  delete shared;
}

void run(void* run_context, void* on_complete, void* pointer) {
  Shared* shared = static_cast<Shared*>(pointer);
  shared->users.fetch_add(1);  // not counted before: the engine may skip a function and delete its parameter
  const std::unique_ptr<void, Deleter> user(shared, leave);  // the function may throw
  shared->function(run_context, on_complete, shared->parameter);
}

}  // namespace

extern "C" int __wrap_MXEnginePushAsync(Function function, void* parameter, Deleter deleter, void* context,
                                        void* const_vars, int num_const_vars, void* mutable_vars,
                                        int num_mutable_vars, void* property, int priority, const char* name,
                                        bool wait) {
  if (!deleter) {
    return __real_MXEnginePushAsync(function, parameter, deleter, context, const_vars, num_const_vars, mutable_vars,
                                    num_mutable_vars, property, priority, name, wait);
  }
  Shared* shared = new Shared{function, parameter, deleter, {1}};
  return __real_MXEnginePushAsync(run, shared, leave, context, const_vars, num_const_vars, mutable_vars,
                                  num_mutable_vars, property, priority, name, wait);
}
