// Order in which slices are written. SPDX-License-Identifier: Apache-2.0
//
// Used by perfetto_encoder.cpp. The input is nearly always a few sorted runs, one per thread and kind, so runs are found
// once and then merged as they are written: a step costs log(runs) comparisons, and nothing is stored per slice.
//
//   columns   [ run 0 ........ | run 1 .... | run 2 ............ ]
//   heap           ^head          ^head        ^head               the first in time on top
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/perfetto_encoder.h"

namespace stashtrace::perfetto {

// Rows of all batches by (begin, -end), or by (begin, batch, -end); equal rows keep the order given.
class WriteOrder {
 public:
  struct Row {
    std::size_t batch;
    std::size_t row;
    std::int64_t begin_ns;
    std::int64_t end_ns;
  };

  WriteOrder(std::span<const SliceBatch> batches, Ties ties);

  [[nodiscard]] bool done() const { return heads_.empty(); }
  [[nodiscard]] Row front() const { return {heads_[0].batch, heads_[0].row, heads_[0].begin_ns, heads_[0].end_ns}; }
  void advance();

 private:
  struct Head {
    std::int64_t begin_ns;
    std::int64_t end_ns;
    std::size_t batch;
    std::size_t row;
    std::size_t run_end;
  };

  [[nodiscard]] bool before(const Head& a, const Head& b) const;
  void sift_down(std::size_t at);

  std::span<const SliceBatch> batches_;
  Ties ties_;
  std::vector<Head> heads_;
};

}  // namespace stashtrace::perfetto
