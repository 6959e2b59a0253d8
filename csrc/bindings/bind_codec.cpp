// stashtrace._native.column_codec: rows <-> columnar payload, GIL released. Called by format/codec.py.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>

#include "kernels/column_codec.h"

namespace py = pybind11;
namespace codec = stashtrace::column_codec;

namespace {

using FieldTuple = std::tuple<std::uint16_t, std::uint8_t, bool>;

py::bytes encode(const py::bytes& rows, std::size_t row_bytes, const std::vector<FieldTuple>& fields) {
  const std::string_view view = rows;
  std::vector<codec::Field> described;
  std::vector<bool> covered(row_bytes, false);
  std::size_t bytes = 0;
  for (const auto& [offset, size, is_signed] : fields) {
    if ((size != 1 && size != 2 && size != 4 && size != 8) || std::size_t{offset} + size > row_bytes)
      throw py::value_error("a field does not lie within the row");
    for (std::size_t i = 0; i < size; ++i) {
      if (covered[offset + i]) throw py::value_error("fields overlap");
      covered[offset + i] = true;
    }
    described.push_back({offset, size, is_signed});
    bytes += size;
  }
  if (row_bytes == 0 || row_bytes > 0xffff || bytes != row_bytes || view.size() % row_bytes != 0 ||
      described.size() > codec::kMaxColumns || view.size() / row_bytes > 0xffffffffU)
    throw py::value_error("fields do not cover the rows");
  std::vector<std::uint8_t> packed;
  {
    const py::gil_scoped_release unlocked;
    packed = codec::encode({reinterpret_cast<const std::uint8_t*>(view.data()), view.size()}, row_bytes, described);
  }
  return {reinterpret_cast<const char*>(packed.data()), packed.size()};
}

py::array_t<std::uint8_t> decode(const py::bytes& payload, std::size_t row_bytes, std::size_t row_count) {
  const std::string_view view = payload;
  py::array_t<std::uint8_t> out(static_cast<py::ssize_t>(row_bytes * row_count));
  bool fine = false;
  {
    std::uint8_t* const data = out.mutable_data();
    const py::gil_scoped_release unlocked;
    fine = codec::decode({reinterpret_cast<const std::uint8_t*>(view.data()), view.size()}, row_bytes,
                         {data, row_bytes * row_count});
  }
  if (!fine) throw py::value_error("columnar payload is malformed");
  return out;
}

}  // namespace

void bind_codec(py::module_& module) {
  py::module_ part = module.def_submodule("column_codec", "Codec 1 of the container: rows as packed columns.");
  part.def("encode", &encode, py::arg("rows"), py::arg("row_bytes"), py::arg("fields"),
           "Payload of rows; fields are (offset, size, signed) and cover each byte of a row once.");
  part.def("decode", &decode, py::arg("payload"), py::arg("row_bytes"), py::arg("row_count"),
           "Rows as a flat uint8 array; ValueError if the payload does not hold exactly these.");
}
