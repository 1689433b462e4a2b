// ps-lite's requests and the answers to them, in the place of its own customer.cc.
//
// ps-lite keeps a pair of numbers for each request for ever: 16 bytes a sum. Here a request goes when it is answered
// and no older one is open. A timestamp is a request's number; tracker_[0].first is that of tracker_[1], the oldest
// request that is kept.

#include "ps/internal/customer.h"

#include "ps/internal/postoffice.h"

namespace ps {

const int Node::kEmpty = std::numeric_limits<int>::max();
const int Meta::kEmpty = std::numeric_limits<int>::max();

namespace {

using Requests = std::vector<std::pair<int, int>>;  // answers that are expected, answers that have come

// The request of this timestamp; null if it is answered, and gone.
std::pair<int, int>* find(Requests& requests, int timestamp) {
  const int place = timestamp - requests[0].first + 1;
  CHECK_LT(place, static_cast<int>(requests.size())) << "no request has the timestamp " << timestamp;
  return place > 0 ? &requests[place] : nullptr;
}

void count(Requests& requests, int timestamp, int answers) {
  std::pair<int, int>* const request = find(requests, timestamp);
  CHECK(request) << "request " << timestamp << " was answered before";
  request->second += answers;
  size_t end = 1;
  while (end < requests.size() && requests[end].first == requests[end].second) ++end;
  requests[0].first += static_cast<int>(end) - 1;
  requests.erase(requests.begin() + 1, requests.begin() + end);
}

}  // namespace

Customer::Customer(int app_id, int customer_id, const RecvHandle& recv_handle)
    : app_id_(app_id), customer_id_(customer_id), recv_handle_(recv_handle), tracker_{{0, 0}} {
  Postoffice::Get()->AddCustomer(this);
  recv_thread_.reset(new std::thread([this] { Receiving(); }));
}

Customer::~Customer() {
  Postoffice::Get()->RemoveCustomer(this);
  Message end;
  end.meta.control.cmd = Control::TERMINATE;
  recv_queue_.Push(end);
  recv_thread_->join();
}

int Customer::NewRequest(int recver) {
  const int expected = static_cast<int>(Postoffice::Get()->GetNodeIDs(recver).size());
  const std::lock_guard<std::mutex> hold(tracker_mu_);
  tracker_.emplace_back(expected, 0);
  return tracker_[0].first + static_cast<int>(tracker_.size()) - 2;
}

void Customer::WaitRequest(int timestamp) {
  std::unique_lock<std::mutex> hold(tracker_mu_);
  tracker_cond_.wait(hold, [this, timestamp] {
    const std::pair<int, int>* const request = find(tracker_, timestamp);
    return !request || request->first == request->second;
  });
}

int Customer::NumResponse(int timestamp) {
  const std::lock_guard<std::mutex> hold(tracker_mu_);
  const std::pair<int, int>* const request = find(tracker_, timestamp);
  CHECK(request) << "request " << timestamp << " was answered before";
  return request->second;
}

void Customer::AddResponse(int timestamp, int num) {
  const std::lock_guard<std::mutex> hold(tracker_mu_);
  count(tracker_, timestamp, num);
}

void Customer::Receiving() {
  for (;;) {
    Message message;
    recv_queue_.WaitAndPop(&message);
    if (message.meta.control.cmd == Control::TERMINATE) return;
    recv_handle_(message);
    if (message.meta.request) continue;
    const std::lock_guard<std::mutex> hold(tracker_mu_);
    count(tracker_, message.meta.timestamp, 1);
    tracker_cond_.notify_all();
  }
}

}  // namespace ps
