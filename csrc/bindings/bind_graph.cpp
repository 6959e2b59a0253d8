// stashtrace._native.graph: numpy face of kernels/graph.h. The GIL is released inside. SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/binders.h"
#include "kernels/graph.h"
#include "kernels/shared_links.h"
#include "kernels/shared_replay.h"

namespace py = pybind11;
namespace graph = stashtrace::graph;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <class T>
std::span<const T> column(const Array<T>& array, std::size_t size) {
  if (array.ndim() != 1 || static_cast<std::size_t>(array.size()) != size)
    throw std::invalid_argument("expected columns of one dimension and equal length");
  return {array.data(), size};
}

// Hands the vector's memory to numpy.
template <class T>
Array<T> to_array(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  py::capsule owner(owned, [](void* pointer) { delete static_cast<std::vector<T>*>(pointer); });
  return Array<T>(static_cast<py::ssize_t>(owned->size()), owned->data(), owner);
}

// Links of nodes as they come from Python: no node has any if `first` is empty.
graph::Links links_of(const Array<std::int32_t>& first, const Array<std::int32_t>& ids, std::size_t nodes) {
  const auto links = column(ids, static_cast<std::size_t>(ids.size()));
  if (first.size() == 0 && links.empty()) return {};
  const auto begins = column(first, nodes + 1);
  const auto size = static_cast<std::int32_t>(links.size());
  if (begins.front() != 0 || begins.back() != size || !std::is_sorted(begins.begin(), begins.end()))
    throw std::invalid_argument("expected where the links of each node begin");
  std::int32_t highest = -1;
  for (const std::int32_t id : links) {
    if (id < 0 || id > size) throw std::invalid_argument("no such link");
    highest = std::max(highest, id);
  }
  for (std::size_t n = 0; n < nodes; ++n) {
    std::vector<std::int32_t> own(links.begin() + begins[n], links.begin() + begins[n + 1]);
    std::sort(own.begin(), own.end());
    if (std::adjacent_find(own.begin(), own.end()) != own.end()) throw std::invalid_argument("a link twice");
  }
  return {static_cast<std::size_t>(highest + 1), begins, links};
}

// Returns how long uses of links would have taken alone, in ns.
Array<std::int64_t> alone(const Array<std::int64_t>& begin_ns, const Array<std::int64_t>& end_ns,
                          const Array<std::int32_t>& link_first, const Array<std::int32_t>& links) {
  const auto nodes = static_cast<std::size_t>(begin_ns.size());
  const graph::Times begin = column(begin_ns, nodes), end = column(end_ns, nodes);
  const graph::Links used = links_of(link_first, links, nodes);
  std::vector<std::int64_t> found;
  {
    const py::gil_scoped_release release;
    found = graph::alone(used, begin, end);
  }
  return to_array(std::move(found));
}

// A graph without cycles, to be replayed any number of times with other durations and lags. Its edges are copies:
// the arrays that it was made from may change later.
class Plan {
 public:
  Plan(const Array<std::int32_t>& source, const Array<std::int32_t>& target, const Array<std::int64_t>& begin_ns,
       const Array<std::int8_t>& certainty)
      : nodes_(static_cast<std::size_t>(begin_ns.size())) {
    const auto edges = static_cast<std::size_t>(source.size());
    const graph::Ids from = column(source, edges), to = column(target, edges);
    source_.assign(from.begin(), from.end());
    target_.assign(to.begin(), to.end());
    for (const graph::Ids ends : {graph::Ids(source_), graph::Ids(target_)})
      for (const std::int32_t id : ends)
        if (id < 0 || static_cast<std::size_t>(id) >= nodes_) throw std::invalid_argument("an edge of no node");
    const auto sure = column(certainty, edges);
    const graph::Times begin = column(begin_ns, nodes_);
    const py::gil_scoped_release release;
    order_ = graph::order({nodes_, source_, target_, {}}, begin, sure);
  }

  Array<std::int32_t> cut() const { return to_array(std::vector<std::int32_t>(order_.cut)); }
  Array<std::int32_t> order() const { return to_array(std::vector<std::int32_t>(order_.nodes)); }

  std::pair<Array<std::int64_t>, Array<std::int32_t>> replay(const Array<std::int64_t>& release_ns,
                                                             const Array<std::int64_t>& duration_ns,
                                                             const Array<std::int64_t>& lag_ns) const {
    const graph::Edges given = edges(lag_ns);
    const graph::Times released = column(release_ns, nodes_), duration = column(duration_ns, nodes_);
    graph::Replay found;
    {
      const py::gil_scoped_release release;
      found = graph::replay(order_, given, released, duration);
    }
    return {to_array(std::move(found.begin_ns)), to_array(std::move(found.binding))};
  }

  std::tuple<Array<std::int64_t>, Array<std::int64_t>, Array<std::int32_t>> replay_shared(
      const Array<std::int64_t>& release_ns, const Array<std::int64_t>& duration_ns, const Array<std::int64_t>& lag_ns,
      const Array<std::int64_t>& busy_ns, const Array<std::int32_t>& host, const Array<double>& cpus,
      const Array<std::int32_t>& link_first, const Array<std::int32_t>& links) const {
    const graph::Edges given = edges(lag_ns);
    const graph::Times released = column(release_ns, nodes_), duration = column(duration_ns, nodes_);
    const graph::Sharing sharing{column(busy_ns, nodes_), column(host, nodes_),
                                 column(cpus, static_cast<std::size_t>(cpus.size())),
                                 links_of(link_first, links, nodes_)};
    for (const std::int32_t id : sharing.host)
      if (id < -1 || id >= static_cast<std::int32_t>(sharing.cpus.size())) throw std::invalid_argument("no such host");
    for (const double count : sharing.cpus)
      if (!(count > 0)) throw std::invalid_argument("a host without CPUs");
    graph::SharedReplay found;
    {
      const py::gil_scoped_release release;
      found = graph::replay_shared(order_, given, released, duration, sharing);
    }
    return {to_array(std::move(found.begin_ns)), to_array(std::move(found.end_ns)), to_array(std::move(found.binding))};
  }

  Array<std::int64_t> slack(const Array<std::int64_t>& begin_ns, const Array<std::int64_t>& duration_ns,
                            const Array<std::int64_t>& lag_ns, const Array<std::int32_t>& sinks,
                            std::int64_t none) const {
    const graph::Edges given = edges(lag_ns);
    const graph::Times begin = column(begin_ns, nodes_), duration = column(duration_ns, nodes_);
    const graph::Ids last = column(sinks, static_cast<std::size_t>(sinks.size()));
    for (const std::int32_t id : last)
      if (id < 0 || static_cast<std::size_t>(id) >= nodes_) throw std::invalid_argument("a sink of no node");
    std::vector<std::int64_t> found;
    {
      const py::gil_scoped_release release;
      found = graph::slack(order_, given, {{begin.begin(), begin.end()}, {}}, duration, last, none);
    }
    return to_array(std::move(found));
  }

 private:
  graph::Edges edges(const Array<std::int64_t>& lag_ns) const {
    return {nodes_, source_, target_, column(lag_ns, source_.size())};
  }

  std::vector<std::int32_t> source_, target_;
  std::size_t nodes_;
  graph::Order order_;
};

}  // namespace

void bind_graph(py::module_& module) {
  using py::arg;
  py::module_ submodule = module.def_submodule("graph", "Graphs of work: an order, the replay along it, slack.");
  py::class_<Plan>(submodule, "Plan")
      .def(py::init<const Array<std::int32_t>&, const Array<std::int32_t>&, const Array<std::int64_t>&,
                    const Array<std::int8_t>&>(),
           arg("source"), arg("target"), arg("begin_ns"), arg("certainty"))
      .def("cut", &Plan::cut, "Edges that stood in a cycle and are left out.")
      .def("order", &Plan::order, "Nodes, sources before targets.")
      .def("replay", &Plan::replay, arg("release_ns"), arg("duration_ns"), arg("lag_ns"),
           "(begin_ns, binding): when each node begins, and the edge that it waited for last, -1 if none.")
      .def("replay_shared", &Plan::replay_shared, arg("release_ns"), arg("duration_ns"), arg("lag_ns"), arg("busy_ns"),
           arg("host"), arg("cpus"), arg("link_first"), arg("links"),
           "(begin_ns, end_ns, binding) where the last busy_ns of each duration share the CPUs of a host, or, of nodes "
           "without one (-1), the links that they use: links[link_first[n]:link_first[n + 1]].")
      .def("slack", &Plan::slack, arg("begin_ns"), arg("duration_ns"), arg("lag_ns"), arg("sinks"), arg("none"),
           "By how much each node can end later before a sink does.");
  submodule.def(
      "alone", &alone, arg("begin_ns"), arg("end_ns"), arg("link_first"), arg("links"),
      "What each use of links, which shared them with others from begin_ns to end_ns, would have taken alone.");
}
