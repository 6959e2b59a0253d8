// A program that calls NCCL in every way the hooks must stand; linked to nccl_double.cpp. SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <thread>
#include <vector>

#include "abi/nccl_abi.h"

using namespace stashtrace::nccl;

#define IMPORTED(name) extern "C" function::name name;
IMPORTED(ncclAllReduce) IMPORTED(ncclAllGather) IMPORTED(ncclReduceScatter) IMPORTED(ncclBcast) IMPORTED(ncclSend)
IMPORTED(ncclRecv) IMPORTED(ncclGroupStart) IMPORTED(ncclGroupEnd) IMPORTED(ncclCommInitRank) IMPORTED(ncclCommSplit)
IMPORTED(ncclCommDestroy) IMPORTED(ncclCommAbort)
IMPORTED(ncclAlltoAll) IMPORTED(ncclGroupSimulateEnd) IMPORTED(ncclCommShrink)

namespace {
constexpr DataType kFloat = 7;
Comm comm = nullptr;
void reduce(std::size_t count, Comm on = comm) { ncclAllReduce(nullptr, nullptr, count, kFloat, 0, on, nullptr); }

void calls() {
  UniqueId id{};
  std::memcpy(id.bytes, "the same prefix of all ids, and then what tells them apart", 58);
  ncclCommInitRank(&comm, 4, id, 1);
  reduce(100);
  ncclReduceScatter(nullptr, nullptr, 10, kFloat, 0, comm, nullptr);
  ncclBcast(nullptr, 20, kFloat, 3, comm, nullptr);
  reduce(666);
  reduce(777);
  ncclGroupStart();
  ncclGroupStart();
  ncclSend(nullptr, 5, kFloat, 2, comm, nullptr);
  ncclGroupEnd();
  ncclRecv(nullptr, 5, kFloat, 0, comm, nullptr);
  ncclGroupEnd();
  ncclGroupEnd();  // one too many: NCCL's own error
  ncclGroupStart();
  reduce(50);
  ncclGroupSimulateEnd(nullptr);
  ncclAlltoAll(nullptr, nullptr, 8, kFloat, comm, nullptr);
  Comm half = nullptr, none = nullptr, fewer = nullptr;
  ncclCommSplit(comm, 1, 0, &half, nullptr);
  ncclCommSplit(comm, kNoColor, 0, &none, nullptr);
  reduce(30, half);
  int excluded[] = {3};
  ncclCommShrink(comm, excluded, 1, &fewer, nullptr, 0);
  ncclCommDestroy(half);
  ncclCommAbort(comm);
}

void threads() {
  UniqueId id{};
  std::vector<std::thread> all;
  for (int t = 0; t < 8; ++t)
    all.emplace_back([t, id]() mutable {
      id.bytes[127] = static_cast<char>(t + 1);
      Comm own = nullptr;
      ncclCommInitRank(&own, 2, id, 0);
      for (int i = 0; i < 100; ++i) {
        if (i % 10 == 0) ncclGroupStart();
        ncclAllGather(nullptr, nullptr, static_cast<std::size_t>(i), kFloat, own, nullptr);
        if (i % 10 == 9) ncclGroupEnd();
      }
      ncclCommDestroy(own);
    });
  for (auto& thread : all) thread.join();
}
}  // namespace

int main(int count, char**) {
  if (count > 1) threads();
  else calls();
}
