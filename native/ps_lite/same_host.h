// The memory of workers on a server's own host: values that are pushed and pulled are copied once, by the server, from
// and to where they lie in the worker. Over TCP each value is copied into the kernel, out of it, and in a worker again.
//
// A server listens at a Unix socket whose name has its address; it has no file, and other hosts cannot reach it. The
// kernel tells it the process at the other end. If it can read that process's memory (Linux wants the same user, and
// containers may forbid it), the worker gets a ticket, 16 random bytes that stand in place of the values in its
// messages. A message without a right ticket moves no memory, so who can reach the server's port alone gains nothing.
#ifndef PS_SAME_HOST_H_
#define PS_SAME_HOST_H_

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace ps {

constexpr size_t kTicketBytes = 16;
// Fewer bytes take as long either way, and an answer of few is not worth a system call under the server's locks.
constexpr int kLeastDirectBytes = 16384;

// The Unix socket that belongs to an address of a server; -1 if there is none.
class LocalSocket {
 public:
  explicit LocalSocket(const std::string& address) : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::string text = "bert-ps " + std::to_string(getuid()) + " " + address;
    name_.sun_family = AF_UNIX;  // its path begins with 0: no file
    const size_t bytes = std::min(text.size(), sizeof name_.sun_path - 1);
    memcpy(name_.sun_path + 1, text.data(), bytes);
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  ~LocalSocket() {
    if (socket_ >= 0) close(socket_);
  }
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  const sockaddr* name() const { return reinterpret_cast<const sockaddr*>(&name_); }
  socklen_t length() const { return length_; }
  int get() const { return socket_; }

 private:
  const int socket_;
  sockaddr_un name_{};
  socklen_t length_;
};

// The process at the other end, if it is this user's; 0 for any other.
inline pid_t ProcessOf(int socket) {
  ucred other{};
  socklen_t bytes = sizeof other;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &bytes) != 0 || other.uid != geteuid()) return 0;
  return other.pid;
}

// Whether all bytes came, within seconds.
inline bool ReadAll(int socket, void* data, size_t bytes) {
  for (char* to = static_cast<char*>(data); bytes;) {
    const int patience = 5000;  // milliseconds
    pollfd source = {socket, POLLIN, 0};
    if (poll(&source, 1, patience) <= 0) return false;
    const ssize_t got = read(socket, to, bytes);
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

inline bool WriteAll(int socket, const void* data, size_t bytes) {
  return send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);  // few: they fit into its buffer
}

// Copies between `own` memory and that of a process; false if not all of it can be.
inline bool CopyFrom(pid_t process, uint64_t address, void* own, size_t bytes) {
  const iovec here = {own, bytes}, there = {reinterpret_cast<void*>(address), bytes};
  return process_vm_readv(process, &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

inline bool CopyTo(pid_t process, uint64_t address, void* own, size_t bytes) {
  const iovec here = {own, bytes}, there = {reinterpret_cast<void*>(address), bytes};
  return process_vm_writev(process, &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

// A number of the worker, and where it lies: a server that reads it there may read the worker's memory.
struct Probe {
  uint64_t address, value;
};

// A worker's ticket for the server at `address`; empty where that is on another host, or may not read our memory.
inline std::string AskForTicket(const std::string& address) {
  const LocalSocket server(address);
  if (server.get() < 0 || connect(server.get(), server.name(), server.length()) != 0) return "";
  if (ProcessOf(server.get()) == 0) return "";
  // Where Linux lets a process into the memory of its children only (Yama), as Open MPI's ranks do, too.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  volatile uint64_t number = 0;
  if (getrandom(const_cast<uint64_t*>(&number), sizeof number, 0) != sizeof number) return "";
  const Probe probe = {reinterpret_cast<uint64_t>(&number), number};
  char ticket[kTicketBytes];
  if (!WriteAll(server.get(), &probe, sizeof probe) || !ReadAll(server.get(), ticket, sizeof ticket)) return "";
  return std::string(ticket, sizeof ticket);
}

// A server's end: gives out tickets until its own end.
class Tickets {
 public:
  explicit Tickets(const std::string& address) : listener_(address) {
    const int waiting = 128;
    if (listener_.get() < 0 || bind(listener_.get(), listener_.name(), listener_.length()) != 0) return;
    if (listen(listener_.get(), waiting) == 0) thread_ = std::thread([this] { GiveOut(); });
  }
  ~Tickets() {
    shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  Tickets(const Tickets&) = delete;
  Tickets& operator=(const Tickets&) = delete;

  // The process that has been given this ticket; 0 if none has.
  pid_t Holder(const std::string& ticket) {
    const std::lock_guard<std::mutex> hold(lock_);
    const auto found = given_.find(ticket);
    return found == given_.end() ? 0 : found->second;
  }

 private:
  void GiveOut() {
    for (;;) {
      const int worker = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (worker < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return;
      }
      Answer(worker);
      close(worker);
    }
  }

  void Answer(int worker) {
    const pid_t process = ProcessOf(worker);
    Probe probe{};
    uint64_t read = 0;
    char ticket[kTicketBytes];
    if (process == 0 || !ReadAll(worker, &probe, sizeof probe)) return;
    if (!CopyFrom(process, probe.address, &read, sizeof read) || read != probe.value) return;
    if (getrandom(ticket, sizeof ticket, 0) != static_cast<ssize_t>(sizeof ticket)) return;
    {
      const std::lock_guard<std::mutex> hold(lock_);
      given_[std::string(ticket, sizeof ticket)] = process;
    }
    WriteAll(worker, ticket, sizeof ticket);
  }

  LocalSocket listener_;
  std::mutex lock_;
  std::map<std::string, pid_t> given_;
  std::thread thread_;
};

}  // namespace ps

#endif  // PS_SAME_HOST_H_
