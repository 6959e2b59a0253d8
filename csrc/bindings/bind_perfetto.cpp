// stashtrace._native.perfetto: numpy columns in, bytes of a Perfetto trace out. SPDX-License-Identifier: Apache-2.0
//
// Used by stashtrace/exporters. Columns are checked here, once, so that the encoder may trust them; the encoding
// itself runs without the GIL and takes it back only to hand a chunk to a Python sink.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "kernels/call_sums.h"
#include "kernels/perfetto_encoder.h"

namespace py = pybind11;

namespace {

using stashtrace::perfetto::Encoder;
using stashtrace::perfetto::FrameTable;
using stashtrace::perfetto::Sink;
using stashtrace::perfetto::SliceBatch;
using stashtrace::perfetto::TextTable;
using stashtrace::perfetto::Ties;
using stashtrace::perfetto::TrackDescription;

using Ints = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

std::span<const std::int64_t> view(const Ints& array) { return {array.data(), static_cast<std::size_t>(array.size())}; }

void require_codes(const Ints& codes, const TextTable& texts, std::int64_t lowest, const std::string& what) {
  const auto limit = static_cast<std::int64_t>(texts.size());
  for (const std::int64_t code : view(codes)) {
    if (code >= limit || code < lowest)
      throw py::value_error(what + ": code " + std::to_string(code) + " is not in its table");
  }
}

// One batch, and references that keep its columns alive.
class Slices {
 public:
  Slices(Ints track, Ints begin_ns, Ints end_ns, Ints name, std::shared_ptr<TextTable> names) {
    batch_.count = static_cast<std::size_t>(begin_ns.size());
    for (const Ints* column : {&track, &end_ns, &name}) require_length(*column, "track, end_ns, name");
    require_codes(name, *names, 0, "name");
    batch_.begin_ns = begin_ns.data();
    batch_.end_ns = end_ns.data();
    batch_.track = track.data();
    batch_.name = name.data();
    batch_.names = names.get();
    tables_.push_back(std::move(names));
    arrays_ = {std::move(track), std::move(begin_ns), std::move(end_ns), std::move(name)};
  }

  Slices& arg_int(const std::string& name, Ints values) {
    require_length(values, name);
    batch_.args.push_back({name, values.data(), nullptr, nullptr});
    arrays_.push_back(std::move(values));
    return *this;
  }

  Slices& arg_double(const std::string& name, Doubles values) {
    require_length(values, name);
    batch_.args.push_back({name, nullptr, values.data(), nullptr});
    arrays_.push_back(std::move(values));
    return *this;
  }

  Slices& arg_text(const std::string& name, Ints codes, std::shared_ptr<TextTable> texts) {
    require_length(codes, name);
    require_codes(codes, *texts, stashtrace::perfetto::kNoValue, name);
    batch_.args.push_back({name, codes.data(), nullptr, texts.get()});
    arrays_.push_back(std::move(codes));
    tables_.push_back(std::move(texts));
    return *this;
  }

  Slices& correlation(Ints codes, std::shared_ptr<TextTable> texts) {
    require_length(codes, "correlation");
    require_codes(codes, *texts, stashtrace::perfetto::kNoValue, "correlation");
    batch_.correlation = codes.data();
    batch_.correlations = texts.get();
    arrays_.push_back(std::move(codes));
    tables_.push_back(std::move(texts));
    return *this;
  }

  Slices& flow(Ints rows, Ints ids, bool terminating) {
    if (rows.size() != ids.size()) throw py::value_error("flow: rows and ids differ in length");
    std::int64_t last = 0;
    for (const std::int64_t row : view(rows)) {
      if (row < last || row >= static_cast<std::int64_t>(batch_.count))
        throw py::value_error("flow: rows must ascend within the batch");
      last = row;
    }
    batch_.flows.push_back({view(rows), view(ids), terminating});
    arrays_.push_back(std::move(rows));
    arrays_.push_back(std::move(ids));
    return *this;
  }

  [[nodiscard]] const SliceBatch& batch() const { return batch_; }

 private:
  void require_length(const py::array& column, const std::string& what) const {
    if (static_cast<std::size_t>(column.size()) != batch_.count) {
      throw py::value_error(what + ": " + std::to_string(column.size()) + " values for " +
                            std::to_string(batch_.count) + " slices");
    }
  }

  SliceBatch batch_;
  std::vector<py::array> arrays_;
  std::vector<std::shared_ptr<TextTable>> tables_;
};

class FileError : public std::exception {
 public:
  explicit FileError(int code) : code_(code) {}
  [[nodiscard]] int code() const { return code_; }

 private:
  int code_;
};

void write_all(int fd, const std::uint8_t* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw FileError(errno);
    data += written;
    size -= static_cast<std::size_t>(written);
  }
}

Sink make_sink(const py::object& target) {
  if (py::isinstance<py::int_>(target)) {
    return [fd = target.cast<int>()](const std::uint8_t* data, std::size_t size) { write_all(fd, data, size); };
  }
  // The last reference may be dropped while the GIL is released, so its deleter takes the GIL.
  std::shared_ptr<py::object> call(new py::object(target), [](py::object* held) {
    const py::gil_scoped_acquire gil;
    delete held;
  });
  return [call](const std::uint8_t* data, std::size_t size) {
    const py::gil_scoped_acquire gil;
    (*call)(py::memoryview::from_memory(data, static_cast<py::ssize_t>(size)));
  };
}

void add_track(Encoder& encoder, std::uint64_t uuid, std::string name, std::uint64_t parent, std::int64_t order,
               std::string description) {
  TrackDescription track;
  track.uuid = uuid;
  track.parent = parent;
  track.name = std::move(name);
  track.rank_among_siblings = order;
  track.description = std::move(description);
  encoder.track(track);
}

void add_process(Encoder& encoder, std::uint64_t uuid, std::int32_t pid, std::string name,
                 std::vector<std::string> labels, std::int64_t order) {
  TrackDescription track;
  track.uuid = uuid;
  track.is_process = true;
  track.pid = pid;
  track.name = std::move(name);
  track.labels = std::move(labels);
  track.rank_among_siblings = order;
  encoder.track(track);
}

void add_counter(Encoder& encoder, std::uint64_t uuid, std::string name, std::uint64_t parent, std::int64_t order,
                 std::string description, std::string unit, std::string share_axis) {
  TrackDescription track;
  track.uuid = uuid;
  track.parent = parent;
  track.name = std::move(name);
  track.rank_among_siblings = order;
  track.description = std::move(description);
  track.is_counter = true;
  track.unit = std::move(unit);
  track.share_axis = std::move(share_axis);
  encoder.track(track);
}

void write_slices(Encoder& encoder, std::uint32_t sequence_id, const std::vector<const Slices*>& slices,
                  bool batch_first) {
  std::vector<SliceBatch> batches;
  for (const Slices* each : slices) batches.push_back(each->batch());
  const py::gil_scoped_release nogil;
  encoder.slices(sequence_id, batches, batch_first ? Ties::kBatchFirst : Ties::kLongerFirst);
}

void write_counter(Encoder& encoder, std::uint32_t sequence_id, std::uint64_t track, const Ints& ts_ns,
                   const Doubles& values) {
  if (ts_ns.size() != values.size()) throw py::value_error("counter: ts_ns and values differ in length");
  const std::span<const double> numbers{values.data(), static_cast<std::size_t>(values.size())};
  const py::gil_scoped_release nogil;
  encoder.counter(sequence_id, track, view(ts_ns), numbers);
}

// Frames of all threads of a trace, and references that keep its columns alive.
class Frames {
 public:
  Frames(Ints caller, Ints name, Ints path, Ints line, Ints number, std::shared_ptr<TextTable> texts)
      : columns_{std::move(caller), std::move(name), std::move(path), std::move(line), std::move(number)},
        texts_(std::move(texts)) {
    const auto count = static_cast<std::int64_t>(columns_[0].size());
    for (const Ints& column : columns_) {
      if (column.size() != count) throw py::value_error("frames: columns differ in length");
    }
    require_codes(columns_[1], *texts_, 0, "name");
    require_codes(columns_[2], *texts_, 0, "path");
    require_callers(count);
    for (const std::int64_t number : view(columns_[4])) {
      if (number < 0 || number >= count) throw py::value_error("frames: a number is not below their count");
    }
  }

  [[nodiscard]] FrameTable table() const {
    return {view(columns_[0]), view(columns_[1]), view(columns_[2]),
            view(columns_[3]), view(columns_[4]), texts_.get()};
  }

 private:
  // Each row has an outermost caller: walks of all rows together visit each once.
  void require_callers(std::int64_t count) const {
    const std::span<const std::int64_t> caller = view(columns_[0]);
    std::vector<std::int64_t> seen(caller.size(), -1);
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t at = row; at >= 0; at = caller[static_cast<std::size_t>(at)]) {
        if (at >= count) throw py::value_error("frames: a caller is not a row");
        std::int64_t& walk = seen[static_cast<std::size_t>(at)];
        if (walk == row) throw py::value_error("frames: callers form a circle");
        if (walk >= 0) break;
        walk = row;
      }
    }
  }

  std::array<Ints, 5> columns_;
  std::shared_ptr<TextTable> texts_;
};

void write_stack_samples(Encoder& encoder, std::uint32_t sequence_id, std::uint64_t uuid, std::int32_t pid,
                         std::int32_t tid, const std::string& name, const Frames& frames, const Ints& ts_ns,
                         const Ints& frame) {
  if (ts_ns.size() != frame.size()) throw py::value_error("samples: ts_ns and frame differ in length");
  const FrameTable table = frames.table();
  for (const std::int64_t row : view(frame)) {
    if (row < 0 || row >= static_cast<std::int64_t>(table.caller.size()))
      throw py::value_error("samples: a frame is not a row of the frames");
  }
  const py::gil_scoped_release nogil;
  encoder.stack_samples(sequence_id, {uuid, pid, tid, name}, table, view(ts_ns), view(frame));
}

py::array_t<std::int32_t> lanes(const Ints& track, const Ints& begin_ns, const Ints& end_ns, bool nest) {
  if (track.size() != begin_ns.size() || track.size() != end_ns.size())
    throw py::value_error("lanes: columns differ in length");
  std::vector<std::int32_t> found;
  {
    const py::gil_scoped_release nogil;
    found = stashtrace::perfetto::assign_lanes(view(track), view(begin_ns), view(end_ns), nest);
  }
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(found.size()), found.data());
}

using stashtrace::call_sums::Sum;
using stashtrace::call_sums::Summing;

template <typename T>
using Column = py::array_t<T, py::array::c_style>;

template <typename T>
std::span<const T> column(const Column<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

std::unique_ptr<Summing> make_sums(std::int64_t origin_ns, std::int64_t width_ns, std::int16_t blocked_flags) {
  if (width_ns < 1) throw py::value_error("the width of a bin must be positive");
  return std::make_unique<Summing>(origin_ns, width_ns, blocked_flags);
}

void add_calls(Summing& sums, std::int64_t track, const Column<std::int64_t>& begin_ns,
               const Column<std::int64_t>& end_ns, const Column<std::int64_t>& result_bytes,
               const Column<std::int32_t>& path_code, const Column<std::int16_t>& io_flags) {
  for (const py::array* other :
       std::initializer_list<const py::array*>{&end_ns, &result_bytes, &path_code, &io_flags}) {
    if (other->size() != begin_ns.size()) throw py::value_error("columns of calls differ in length");
  }
  const stashtrace::call_sums::Calls calls{column(begin_ns), column(end_ns), column(result_bytes), column(path_code),
                                           column(io_flags)};
  const py::gil_scoped_release nogil;
  sums.add(track, calls);
}

py::dict sum_columns(const Summing& sums) {
  const std::span<const Sum> rows = sums.sums();
  py::dict columns;
  const auto put = [&](const char* name, std::int64_t Sum::* field) {
    py::array_t<std::int64_t> values(static_cast<py::ssize_t>(rows.size()));
    std::int64_t* out = values.mutable_data();
    for (const Sum& row : rows) *out++ = row.*field;
    columns[name] = std::move(values);
  };
  put("track", &Sum::track);
  put("begin_ns", &Sum::begin_ns);
  put("end_ns", &Sum::end_ns);
  put("calls_count", &Sum::calls_count);
  put("bytes", &Sum::bytes);
  put("busy_ns", &Sum::busy_ns);
  put("blocked_count", &Sum::blocked_count);
  put("path_code", &Sum::path_code);
  return columns;
}

}  // namespace

void bind_perfetto(py::module_& module) {
  py::module_ perfetto = module.def_submodule("perfetto", "Encoder of Perfetto traces.");
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const FileError& error) {
      errno = error.code();
      PyErr_SetFromErrno(PyExc_OSError);
    }
  });

  py::class_<TextTable, std::shared_ptr<TextTable>>(perfetto, "TextTable",
                                                    "Texts addressed by code, shared by batches.")
      .def(py::init<std::vector<std::string>>(), py::arg("texts"))
      .def("__len__", &TextTable::size);

  py::class_<Slices>(perfetto, "Slices", "Columns of slices with the same arguments.")
      .def(py::init<Ints, Ints, Ints, Ints, std::shared_ptr<TextTable>>(), py::arg("track"), py::arg("begin_ns"),
           py::arg("end_ns"), py::arg("name"), py::arg("names"))
      .def("arg_int", &Slices::arg_int, py::arg("name"), py::arg("values"), py::return_value_policy::reference_internal)
      .def("arg_double", &Slices::arg_double, py::arg("name"), py::arg("values"),
           py::return_value_policy::reference_internal)
      .def("arg_text", &Slices::arg_text, py::arg("name"), py::arg("codes"), py::arg("texts"),
           py::return_value_policy::reference_internal)
      .def("correlation", &Slices::correlation, py::arg("codes"), py::arg("texts"),
           py::return_value_policy::reference_internal)
      .def("flow", &Slices::flow, py::arg("rows"), py::arg("ids"), py::arg("terminating") = false,
           py::return_value_policy::reference_internal)
      .def("__len__", [](const Slices& slices) { return slices.batch().count; });

  py::class_<Frames>(perfetto, "Frames", "Frames of code, each below its caller.")
      .def(py::init<Ints, Ints, Ints, Ints, Ints, std::shared_ptr<TextTable>>(), py::arg("caller"), py::arg("name"),
           py::arg("path"), py::arg("line"), py::arg("number"), py::arg("texts"));

  py::class_<Encoder>(perfetto, "Encoder", "Writes tracks, slices and counters to a descriptor or a callable.")
      .def(py::init([](const py::object& sink, std::size_t chunk_bytes) {
             return std::make_unique<Encoder>(make_sink(sink), chunk_bytes);
           }),
           py::arg("sink"), py::arg("chunk_bytes") = std::size_t{1} << 20)
      .def("process", &add_process, py::arg("uuid"), py::arg("pid"), py::arg("name"),
           py::arg("labels") = std::vector<std::string>{}, py::arg("order") = 0)
      .def("track", &add_track, py::arg("uuid"), py::arg("name"), py::arg("parent") = 0, py::arg("order") = 0,
           py::arg("description") = "")
      .def("counter_track", &add_counter, py::arg("uuid"), py::arg("name"), py::arg("parent") = 0, py::arg("order") = 0,
           py::arg("description") = "", py::arg("unit") = "", py::arg("share_axis") = "")
      .def("view", &Encoder::view, py::arg("begin_ns"), py::arg("end_ns"), py::arg("process_name"))
      .def("slices", &write_slices, py::arg("sequence_id"), py::arg("batches"), py::arg("batch_first") = false)
      .def("counter", &write_counter, py::arg("sequence_id"), py::arg("track"), py::arg("ts_ns"), py::arg("values"))
      .def("stack_samples", &write_stack_samples, py::arg("sequence_id"), py::arg("uuid"), py::arg("pid"),
           py::arg("tid"), py::arg("name"), py::arg("frames"), py::arg("ts_ns"), py::arg("frame"))
      .def("flush",
           [](Encoder& encoder) {
             const py::gil_scoped_release nogil;
             encoder.flush();
           })
      .def_property_readonly("slice_count", &Encoder::slice_count)
      .def_property_readonly("byte_count", &Encoder::byte_count);

  py::class_<Summing>(perfetto, "CallSums", "I/O calls summed per thread and time bin.")
      .def(py::init(&make_sums), py::arg("origin_ns"), py::arg("width_ns"), py::arg("blocked_flags"))
      .def("add", &add_calls, py::arg("track"), py::arg("begin_ns").noconvert(), py::arg("end_ns").noconvert(),
           py::arg("result_bytes").noconvert(), py::arg("path_code").noconvert(), py::arg("io_flags").noconvert(),
           "Calls of one thread by begin; its parts come one after the other.")
      .def("columns", &sum_columns, "One row per thread and bin that holds calls.");

  perfetto.attr("NO_VALUE") = stashtrace::perfetto::kNoValue;
  perfetto.def("lanes", &lanes, py::arg("track"), py::arg("begin_ns"), py::arg("end_ns"), py::arg("nest") = true);
}
