// Pushes in the order of workers, so that a server's sums do not depend on who comes first.
//
// BytePS's server adds what it receives in the order of arrival, and a sum of three or more numbers depends on that
// order in its last bits. Here what a worker pushes for a key waits until all workers with a smaller number have pushed
// theirs: the sum is ((first + second) + third) + ... in every run. Of what waits the server keeps a copy, so that in
// the worst case it holds the values of all workers but one.
#ifndef PS_IN_TURN_H_
#define PS_IN_TURN_H_

#include <deque>
#include <map>
#include <utility>

#include "ps/base.h"
#include "ps/internal/message.h"

namespace ps {

// Used by one thread.
class InTurn {
 public:
  // Takes what `worker`, a number from 0 to `workers` - 1, pushes for a key. It pushes again only when all have pushed.
  void Take(Key key, int worker, int workers, Message&& message) {
    CHECK_LT(worker, workers) << "worker " << worker << " of a run with fewer";
    Round& round = rounds_[key];
    CHECK(round.waiting.emplace(worker, std::move(message)).second) << "two workers have the number " << worker;
    for (auto next = round.waiting.find(round.next); next != round.waiting.end();
         next = round.waiting.find(round.next)) {
      ready_.push_back(std::move(next->second));
      round.waiting.erase(next);
      round.next = (round.next + 1) % workers;
    }
  }

  // The next message whose turn has come; false if there is none.
  bool Next(Message* message) {
    if (ready_.empty()) return false;
    *message = std::move(ready_.front());
    ready_.pop_front();
    return true;
  }

 private:
  struct Round {
    int next = 0;  // the worker whose turn it is
    std::map<int, Message> waiting;
  };
  std::map<Key, Round> rounds_;
  std::deque<Message> ready_;
};

}  // namespace ps

#endif  // PS_IN_TURN_H_
