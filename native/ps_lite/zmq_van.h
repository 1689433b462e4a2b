// ps-lite's transport over ZeroMQ, in the place of its own.
//
// ps-lite's ZMQVan never frees what describes a message that it has received: 315 bytes of each, which is 630 bytes a
// sum in a worker and as much for each worker in a server. Its receiving threads ask for messages in an endless loop,
// under the lock that senders need. This one frees all of a message with its last reader, and its threads sleep until
// there is a message. Frames are the same: the identity of the sender, the description, the data.
//
// A worker has two connections to each server. What has no values, requests to pull and acknowledgements, has one of
// its own: on one for both it waits behind all values that are queued, so that a worker pulled only when it had pushed
// everything, and half of its link was idle at any time.
//
// Values between a worker and a server of the same host do not travel at all, see same_host.h. With BYTEPS_REPRODUCIBLE
// workers tell their numbers, by which servers then order what they push, see in_turn.h.
//
// It is compiled into van.cc (-include, see build.mk), whose own #include of src/zmq_van.h the guard then leaves empty.
#ifndef PS_ZMQ_VAN_H_
#define PS_ZMQ_VAN_H_

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "in_turn.h"
#include "ps/internal/postoffice.h"
#include "ps/internal/threadsafe_queue.h"
#include "ps/internal/van.h"
#include "same_host.h"

namespace ps {

// A part of a message.
struct ZmqFrame {
  zmq_msg_t content;

  ZmqFrame() { zmq_msg_init(&content); }
  // Takes `data`; ZeroMQ calls release(data, owner) when it has been sent.
  ZmqFrame(void* data, size_t bytes, zmq_free_fn* release, void* owner) {
    CHECK_EQ(zmq_msg_init_data(&content, data, bytes, release, owner), 0) << zmq_strerror(errno);
  }
  explicit ZmqFrame(const std::string& text) {
    CHECK_EQ(zmq_msg_init_size(&content, text.size()), 0) << zmq_strerror(errno);
    memcpy(zmq_msg_data(&content), text.data(), text.size());
  }
  ~ZmqFrame() { zmq_msg_close(&content); }
  ZmqFrame(const ZmqFrame&) = delete;
  ZmqFrame& operator=(const ZmqFrame&) = delete;

  char* data() { return static_cast<char*>(zmq_msg_data(&content)); }
  size_t size() { return zmq_msg_size(&content); }
};

using ZmqFrames = std::vector<std::unique_ptr<ZmqFrame>>;

// A socket, the lock under which threads use it, and the thread that receives from it, if one does.
class ZmqChannel {
 public:
  ZmqChannel(void* context, int kind) : socket(zmq_socket(context, kind)) {
    CHECK(socket) << zmq_strerror(errno) << " (ulimit -n limits the number of sockets, too)";
  }
  ~ZmqChannel() {
    if (receiver_.joinable()) {
      stopped_ = true;
      Ring();
      receiver_.join();
    }
    const int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    CHECK_EQ(zmq_close(socket), 0) << zmq_strerror(errno);
    if (bell_ >= 0) close(bell_);
  }
  ZmqChannel(const ZmqChannel&) = delete;
  ZmqChannel& operator=(const ZmqChannel&) = delete;

  // Sends one message; false, with a reason in errno, if ZeroMQ does not take it.
  bool Send(const ZmqFrames& frames) {
    bool call;
    {
      const std::lock_guard<std::mutex> hold(lock_);
      for (size_t i = 0; i < frames.size(); ++i) {
        const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
        while (zmq_msg_send(&frames[i]->content, socket, flags) < 0) {
          if (errno != EINTR) return false;
        }
      }
      call = waits_;
    }
    // Sending may take away the notice that a message has come.
    if (call) Ring();
    return true;
  }

  // Starts the thread, which hands each message to `take`.
  template <typename Take>
  void Receive(Take take) {
    size_t bytes = sizeof notices_;
    CHECK_EQ(zmq_getsockopt(socket, ZMQ_FD, &notices_, &bytes), 0) << zmq_strerror(errno);
    bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK_GE(bell_, 0) << strerror(errno);
    receiver_ = std::thread([this, take] {
      while (!stopped_) {
        ZmqFrames frames;
        if (Next(&frames)) {
          take(std::move(frames));
        } else {
          Wait();
        }
      }
    });
  }

  void* const socket;

 private:
  // The next message; false if there is none yet. ZeroMQ has either all frames of a message or none.
  bool Next(ZmqFrames* frames) {
    const std::lock_guard<std::mutex> hold(lock_);
    do {
      std::unique_ptr<ZmqFrame> frame(new ZmqFrame());
      while (zmq_msg_recv(&frame->content, socket, ZMQ_DONTWAIT) < 0) {
        if (errno == EINTR) continue;
        CHECK_EQ(errno, EAGAIN) << zmq_strerror(errno);
        CHECK(frames->empty()) << "a message without end";
        waits_ = true;  // whoever sends after us sees it
        return false;
      }
      frames->push_back(std::move(frame));
    } while (zmq_msg_more(&frames->back()->content));
    waits_ = false;
    return true;
  }

  // Sleeps until ZeroMQ has something or another thread calls.
  void Wait() {
    const int patience = 50;  // milliseconds
    pollfd sources[] = {{notices_, POLLIN, 0}, {bell_, POLLIN, 0}};
    poll(sources, 2, patience);
    uint64_t calls;
    if (sources[1].revents && read(bell_, &calls, sizeof calls) < 0) CHECK_EQ(errno, EAGAIN) << strerror(errno);
  }

  void Ring() {
    const uint64_t one = 1;
    if (write(bell_, &one, sizeof one) < 0) CHECK_EQ(errno, EAGAIN) << strerror(errno);  // it rings already
  }

  std::mutex lock_;
  bool waits_ = false;
  std::atomic<bool> stopped_{false};
  int notices_ = -1;
  int bell_ = -1;
  std::thread receiver_;
};

class ZMQVan : public Van {
 public:
  std::string GetType() const override { return "zeromq"; }

  void Start(int customer_id, bool standalone) override {
    standalone_ = standalone;
    {
      const std::lock_guard<std::mutex> hold(start_mu_);
      if (!context_) {
        context_ = zmq_ctx_new();
        CHECK(context_) << zmq_strerror(errno);
        zmq_ctx_set(context_, ZMQ_MAX_SOCKETS, GetEnv("BYTEPS_ZMQ_MAX_SOCKET", 2048));
        zmq_ctx_set(context_, ZMQ_IO_THREADS, GetEnv("BYTEPS_ZMQ_NTHREADS", 4));
      }
    }
    if (!standalone) Van::Start(customer_id, false);
  }

  void Stop() override {
    Van::Stop();
    const std::lock_guard<std::mutex> hold(lock_);
    connections_.clear();
    quick_.clear();
    listener_.reset();
    tickets_.reset();
    zmq_ctx_destroy(context_);
    context_ = nullptr;
  }

  // Listens at the port of `node`, else at one of `max_retry` others drawn at random; returns it.
  int Bind(const Node& node, int max_retry) override {
    worker_ = node.role == Node::WORKER;
    if (worker_ && GetEnv("BYTEPS_REPRODUCIBLE", 0)) my_node_.aux_id = GetEnv("DMLC_WORKER_ID", kNoNumber);
    listener_.reset(new ZmqChannel(context_, ZMQ_ROUTER));
    const int mandatory = 1;  // an unknown receiver is an error
    CHECK_EQ(zmq_setsockopt(listener_->socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory), 0);
    std::string host = node.hostname.empty() ? "*" : node.hostname;
    if (node.role == Node::SCHEDULER && GetEnv("DMLC_USE_KUBERNETES", 0) > 0) host = "0.0.0.0";
    std::minstd_rand draw{std::random_device{}()};
    int port = node.port;
    for (int left = max_retry; zmq_bind(listener_->socket, Address(host, port).c_str()) != 0; --left) {
      CHECK_GT(left, 0) << "cannot listen at " << Address(host, port) << ": " << zmq_strerror(errno);
      port = std::uniform_int_distribution<int>(10000, 49999)(draw);
    }
    if (node.role == Node::SERVER) tickets_.reset(new Tickets(Address(node.hostname, port)));
    Listen(listener_.get());
    return port;
  }

  void Connect(const Node& node) override {
    CHECK_NE(node.id, Node::kEmpty);
    CHECK_NE(node.port, Node::kEmpty);
    CHECK(!node.hostname.empty());
    // Workers have nothing to say to other workers, servers nothing to other servers.
    const bool peer = node.role == my_node_.role && node.id != my_node_.id;
    std::shared_ptr<ZmqChannel> channel, quick;
    const bool known = my_node_.id != Node::kEmpty;
    if (!peer || standalone_) channel = Open(node, known ? Identity(my_node_.id) : "");
    std::string ticket;
    if (worker_ && known && node.role == Node::SERVER) {
      quick = Open(node, QuickIdentity(my_node_.id));
      if (GetEnv("BYTEPS_DIRECT", 1)) ticket = AskForTicket(Address(node.hostname, node.port));
    }
    const std::lock_guard<std::mutex> hold(lock_);
    connections_.erase(node.id);
    quick_.erase(node.id);
    own_tickets_[node.id] = ticket;
    if (node.role == Node::WORKER) numbers_[node.id] = node.aux_id;
    if (channel) connections_[node.id] = channel;
    if (quick) quick_[node.id] = quick;
  }

  int SendMsg(Message& message) override {
    const int id = message.meta.recver;
    CHECK_NE(id, Meta::kEmpty);
    const bool data = message.meta.control.empty() && !message.meta.simple_app;
    if (data && message.data.size() > 1) MoveDirectly(&message);
    const bool quick = data && (message.data.size() < 2 || message.data[1].size() == 0);
    std::shared_ptr<ZmqChannel> channel;
    {
      const std::lock_guard<std::mutex> hold(lock_);
      const auto& connections = quick && quick_.count(id) ? quick_ : connections_;
      const auto found = connections.find(id);
      if (found != connections.end()) channel = found->second;
    }
    if (!channel) {
      LOG(WARNING) << "there is no connection to node " << id;
      return -1;
    }
    ZmqFrames frames;
    const auto add = [&frames](ZmqFrame* frame) { frames.emplace_back(frame); };
    const bool answer = !worker_ && data && IsWorker(id);
    if (answer) {
      channel = listener_;
      add(new ZmqFrame(quick ? QuickIdentity(id) : Identity(id)));
      add(new ZmqFrame(Identity(my_node_.id)));
    }
    char* description = nullptr;
    int bytes = 0;
    PackMeta(message.meta, &description, &bytes);
    add(new ZmqFrame(description, bytes, [](void* text, void*) { delete[] static_cast<char*>(text); }, nullptr));
    for (const SArray<char>& each : message.data) {
      auto* owner = new SArray<char>(each);
      const auto release = [](void*, void* kept) { delete static_cast<SArray<char>*>(kept); };
      add(new ZmqFrame(owner->data(), owner->size(), release, owner));
      bytes += static_cast<int>(each.size());
    }
    bool sent = channel->Send(frames);
    if (!sent && answer && quick && errno == EHOSTUNREACH) {  // this connection does not stand yet, the other does
      frames[0].reset(new ZmqFrame(Identity(id)));
      sent = channel->Send(frames);
    }
    if (!sent) {
      LOG(WARNING) << "a message to node " << id << " is not sent: " << zmq_strerror(errno);
      return -1;
    }
    return bytes;
  }

  int RecvMsg(Message* message) override {
    while (!in_turn_.Next(message)) {
      ZmqFrames frames;
      received_.WaitAndPop(&frames);
      message->meta.sender = Number(frames[0]->data(), frames[0]->size());
      message->meta.recver = my_node_.id;
      UnpackMeta(frames[1]->data(), frames[1]->size(), &message->meta);
      message->data.clear();
      for (size_t i = 2; i < frames.size(); ++i) {
        // Where it lies: the frame goes with the last array that refers to it.
        ZmqFrame* const frame = frames[i].release();
        SArray<char> data;
        data.reset(frame->data(), frame->size(), [frame](char*) { delete frame; });
        message->data.push_back(data);
      }
      if (tickets_ && message->meta.request && message->meta.option == kDirect && !Redeem(message)) {
        LOG(WARNING) << "a message in the name of node " << message->meta.sender << " is dropped: its values are not there";
        continue;
      }
      const int number = NumberOfPush(*message);
      if (number == kNoNumber) break;
      Key key;
      memcpy(&key, message->data[0].data(), sizeof key);
      in_turn_.Take(key, number, Postoffice::Get()->num_workers(), std::move(*message));
      *message = Message();
    }
    int bytes = 0;
    for (const SArray<char>& each : message->data) bytes += static_cast<int>(each.size());
    return bytes;
  }

 private:
  // As a worker, puts the ticket of a server on this host in place of the values of a request, if they are many; as a
  // server, copies the values of an answer to where such a request wants them, if it can.
  void MoveDirectly(Message* message) {
    Meta& meta = message->meta;
    SArray<char>& values = message->data[1];
    if (worker_) {
      meta.option = 0;  // ps-lite leaves it as it is
      const std::lock_guard<std::mutex> hold(lock_);
      const std::string& ticket = own_tickets_[meta.recver];
      if (ticket.empty() || meta.val_len < kLeastDirectBytes) return;
      meta.option = kDirect;
      values = SArray<char>();  // CopyFrom would write to where the values lie
      values.CopyFrom(ticket.data(), ticket.size());
    } else if (tickets_ && !meta.request && !meta.push && meta.option == kDirect) {
      pid_t process;
      {
        const std::lock_guard<std::mutex> hold(lock_);
        process = holders_[meta.recver];
      }
      const bool fits = values.size() <= static_cast<size_t>(meta.val_len);
      if (fits && CopyTo(process, meta.addr, values.data(), values.size())) values = SArray<char>();
    }
  }

  // As a server, fetches the values that a worker of this host pushes, or notes who pulls; false if the ticket is wrong
  // or the worker is gone.
  bool Redeem(Message* message) {
    const Meta& meta = message->meta;
    if (message->data.size() < 2 || meta.val_len < 0) return false;
    SArray<char>& values = message->data[1];
    const pid_t process = tickets_->Holder(std::string(values.data(), values.size()));
    if (process == 0) return false;
    if (!meta.push) {
      values = SArray<char>();
      const std::lock_guard<std::mutex> hold(lock_);
      holders_[meta.sender] = process;
      return true;
    }
    const size_t bytes = static_cast<size_t>(meta.val_len);
    values = SArray<char>(new char[bytes], bytes, true);
    return CopyFrom(process, meta.addr, values.data(), bytes);
  }

  // As a server, the number of the worker whose push this is; kNoNumber for what is not to be ordered. Two numbers have
  // the same sum in any order.
  int NumberOfPush(const Message& message) {
    const Meta& meta = message.meta;
    if (!tickets_ || !meta.control.empty() || meta.simple_app || !meta.request || !meta.push) return kNoNumber;
    if (message.data.empty() || message.data[0].size() != sizeof(Key)) return kNoNumber;
    if (Postoffice::Get()->num_workers() < 3) return kNoNumber;
    const std::lock_guard<std::mutex> hold(lock_);
    const auto found = numbers_.find(meta.sender);
    return found == numbers_.end() ? kNoNumber : found->second;
  }

  // A connection under a name; as a worker that has its number, also for what comes back through it.
  std::shared_ptr<ZmqChannel> Open(const Node& node, const std::string& own) {
    std::shared_ptr<ZmqChannel> channel(new ZmqChannel(context_, ZMQ_DEALER));
    if (!own.empty()) CHECK_EQ(zmq_setsockopt(channel->socket, ZMQ_IDENTITY, own.data(), own.size()), 0);
    const std::string address = Address(node.hostname, node.port);
    CHECK_EQ(zmq_connect(channel->socket, address.c_str()), 0) << address << ": " << zmq_strerror(errno);
    // Servers answer a worker through the connections that it has made.
    if (worker_ && !own.empty()) Listen(channel.get());
    return channel;
  }

  void Listen(ZmqChannel* channel) {
    channel->Receive([this](ZmqFrames&& frames) {
      if (frames.size() < 2) return;  // no message of ps-lite's
      received_.Push(std::move(frames));
    });
  }

  static std::string Address(const std::string& host, int port) {
    if (GetEnv("DMLC_LOCAL", 0)) return "ipc:///tmp/" + std::to_string(port);
    return "tcp://" + host + ":" + std::to_string(port);
  }

  static std::string Identity(int id) { return "ps" + std::to_string(id); }
  static std::string QuickIdentity(int id) { return "pq" + std::to_string(id); }

  // The node of an identity; Meta::kEmpty where it has none yet.
  static int Number(const char* identity, size_t bytes) {
    const std::string text(identity, bytes);
    if ((text.compare(0, 2, "ps") != 0 && text.compare(0, 2, "pq") != 0) || text.size() < 3 || text.size() > 9) return Meta::kEmpty;
    if (text.find_first_not_of("0123456789", 2) != std::string::npos) return Meta::kEmpty;
    return std::stoi(text.substr(2));
  }

  static bool IsWorker(int id) { return id >= 8 && id % 2 == 1; }

  static constexpr int kDirect = 0x6d656d;  // Meta::option of a request whose values do not travel, and of its answer

  static constexpr int kNoNumber = -1;  // as ps-lite's Node has it

  void* context_ = nullptr;
  bool standalone_ = false;
  bool worker_ = false;
  ThreadsafeQueue<ZmqFrames> received_;
  std::shared_ptr<ZmqChannel> listener_;
  std::mutex lock_;  // of the connections
  std::map<int, std::shared_ptr<ZmqChannel>> connections_;
  std::unique_ptr<Tickets> tickets_;        // of a server
  std::map<int, pid_t> holders_;            // processes of workers on this host
  std::map<int, int> numbers_;              // of workers, kNoNumber without BYTEPS_REPRODUCIBLE
  InTurn in_turn_;
  std::map<int, std::string> own_tickets_;  // of a worker, for each server; empty for one on another host
  std::map<int, std::shared_ptr<ZmqChannel>> quick_;  // from a worker to servers, of what has no values
};

}  // namespace ps

#endif  // PS_ZMQ_VAN_H_
