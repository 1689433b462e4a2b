// NCCL's calls between the processes of one host, through shared memory (shared.h). Sums are formed in the order of
// the ranks: the same bits on every rank and in every run. A call returns when its work is done, so streams have
// nothing to do. Each communicator is used by one thread at a time, as in NCCL.

#include <nccl.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "reduce.h"
#include "shared.h"

// BytePS passes the handle around; with one rank there is nothing to share.
struct ncclComm {
  host_runtime::Shared* shared;
};

namespace {

using host_runtime::fail;
using host_runtime::Operation;
using host_runtime::Shared;

enum Kind : uint32_t { reduce = 1, reduce_scatter, all_gather, broadcast };

struct Call {
  Kind kind;
  const char* send;
  char* receive;
  size_t count;
  ncclDataType_t type;
  int root;
  ncclComm_t comm;
};

thread_local int group_depth = 0;
thread_local std::vector<Call>* group = nullptr;  // between ncclGroupStart and ncclGroupEnd

void copy(char* to, const char* from, size_t bytes) {
  if (bytes != 0 && to != from) memmove(to, from, bytes);
}

// Gives each rank its own block of the sums. `blocks` of `count` elements, the one at position r for rank r; with
// one block, it is for `root` alone.
ncclResult_t sum_blocks(const Call& call, Shared& shared, const Operation& operation, int blocks) {
  const size_t bytes = host_runtime::width(call.type);
  const size_t room = host_runtime::staging_bytes / bytes / blocks;
  const int ranks = shared.ranks(), self = shared.rank();
  const int mine = blocks == 1 ? 0 : self;
  const bool receives = blocks != 1 || self == call.root;
  for (size_t done = 0; done < call.count; done += room) {
    const size_t length = std::min(room, call.count - done);
    for (int block = 0; block < blocks; ++block) {
      if (receives && block == mine) continue;
      copy(shared.own() + block * room * bytes, call.send + (block * call.count + done) * bytes, length * bytes);
    }
    const ncclResult_t met = shared.meet(operation);
    if (met != ncclSuccess) return met;
    if (receives) {
      const void* sources[host_runtime::max_ranks];
      for (int rank = 0; rank < ranks; ++rank) sources[rank] = shared.of(rank) + mine * room * bytes;
      sources[self] = call.send + (mine * call.count + done) * bytes;
      host_runtime::sum(call.type, sources, ranks, call.receive + done * bytes, length);
    }
    shared.end_round();
  }
  return ncclSuccess;
}

// Gives every rank the data of the others: with one sender that of `root`, else one block from each rank.
ncclResult_t spread(const Call& call, Shared& shared, const Operation& operation, bool one_sender) {
  const size_t bytes = host_runtime::width(call.type);
  const size_t room = host_runtime::staging_bytes / bytes;
  const int self = shared.rank();
  const bool sends = !one_sender || self == call.root;
  for (size_t done = 0; done < call.count; done += room) {
    const size_t length = std::min(room, call.count - done) * bytes;
    const size_t begin = done * bytes;
    if (sends) copy(shared.own(), call.send + begin, length);
    const ncclResult_t met = shared.meet(operation);
    if (met != ncclSuccess) return met;
    for (int rank = 0; rank < shared.ranks(); ++rank) {
      if (one_sender && rank != call.root) continue;
      const char* source = rank == self ? call.send + begin : shared.of(rank);
      const size_t block = one_sender ? 0 : rank * call.count * bytes;
      copy(call.receive + block + begin, source, length);
    }
    shared.end_round();
  }
  return ncclSuccess;
}

ncclResult_t execute(const Call& call) {
  if (!call.comm->shared) {
    copy(call.receive, call.send, call.count * host_runtime::width(call.type));
    return ncclSuccess;
  }
  Shared& shared = *call.comm->shared;
  const Operation operation = {call.kind, uint32_t(call.type), call.root, 0, call.count};
  switch (call.kind) {
    case reduce:
      return sum_blocks(call, shared, operation, 1);
    case reduce_scatter:
      return sum_blocks(call, shared, operation, shared.ranks());
    case all_gather:
      return spread(call, shared, operation, false);
    case broadcast:
      return spread(call, shared, operation, true);
  }
  return fail(ncclInternalError, "unknown operation %u", call.kind);
}

ncclResult_t submit(const Call& call) {
  if (!call.comm) return fail(ncclInvalidArgument, "the communicator is null");
  if (host_runtime::width(call.type) == 0) return fail(ncclInvalidArgument, "unknown data type %d", int(call.type));
  const int ranks = call.comm->shared ? call.comm->shared->ranks() : 1;
  if (call.root < 0 || call.root >= ranks) {
    return fail(ncclInvalidArgument, "root %d of %d ranks", call.root, ranks);
  }
  if (group_depth == 0) return execute(call);
  if (!group) group = new std::vector<Call>;
  group->push_back(call);
  return ncclSuccess;
}

ncclResult_t only_sum(ncclRedOp_t op) {
  if (op == ncclSum) return ncclSuccess;
  return fail(ncclInvalidArgument, "reduction %d: the host runtime has sums only (ncclSum)", int(op));
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  // NCCL has a fixed text for each number; the reason is worth more, and callers ask right after the failure.
  return result == ncclSuccess ? "no error" : host_runtime::failure();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (!id) return fail(ncclInvalidArgument, "the id is null");
  return Shared::create(id);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  if (!comm) return fail(ncclInvalidArgument, "the communicator is null");
  if (ranks < 1 || ranks > host_runtime::max_ranks) {
    return fail(ncclInvalidArgument, "%d ranks: 1 to %d are possible", ranks, host_runtime::max_ranks);
  }
  if (rank < 0 || rank >= ranks) return fail(ncclInvalidArgument, "rank %d of %d", rank, ranks);
  Shared* shared = nullptr;
  const ncclResult_t result = Shared::join(id, ranks, rank, &shared);
  if (result != ncclSuccess) return result;
  if (ranks == 1) {
    delete shared;
    shared = nullptr;
  }
  *comm = new ncclComm{shared};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return fail(ncclInvalidArgument, "the communicator is null");
  delete comm->shared;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
  if (group_depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth != 0 || !group) return ncclSuccess;
  std::vector<Call>* calls = group;
  group = nullptr;
  ncclResult_t result = ncclSuccess;
  for (const Call& call : *calls) {
    result = execute(call);
    if (result != ncclSuccess) break;
  }
  delete calls;
  return result;
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t) {
  const ncclResult_t result = only_sum(op);
  if (result != ncclSuccess) return result;
  return submit({reduce, static_cast<const char*>(send), static_cast<char*>(receive), count, type, root, comm});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  const ncclResult_t result = only_sum(op);
  if (result != ncclSuccess) return result;
  return submit(
      {reduce_scatter, static_cast<const char*>(send), static_cast<char*>(receive), receive_count, type, 0, comm});
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t) {
  return submit(
      {all_gather, static_cast<const char*>(send), static_cast<char*>(receive), send_count, type, 0, comm});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t) {
  return submit({broadcast, static_cast<const char*>(send), static_cast<char*>(receive), count, type, root, comm});
}

}  // extern "C"
