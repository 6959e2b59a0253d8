// schema() -> dict: the tables of records.def for Python. Called by format/, collectors/ and the probes.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include <string>

#include "schema/container.h"
#include "schema/schema.h"

namespace py = pybind11;
namespace schema = stashtrace::schema;
namespace container = stashtrace::container;

namespace {

py::str text(std::string_view value) { return {value.data(), value.size()}; }

const char* type_name(schema::FieldType type) {
  switch (type) {
    case schema::FieldType::u16: return "u16";
    case schema::FieldType::i32: return "i32";
    case schema::FieldType::u32: return "u32";
    case schema::FieldType::i64: return "i64";
    case schema::FieldType::u64: return "u64";
    case schema::FieldType::f64: return "f64";
    case schema::FieldType::text56: return "text56";
  }
  return "";
}

py::dict field_dict(const schema::FieldDesc& field) {
  py::dict out;
  out["name"] = text(field.name);
  out["type"] = type_name(field.type);
  out["offset"] = field.offset_bytes;
  out["size"] = field.size_bytes;
  out["doc"] = text(field.doc);
  return out;
}

py::dict record_dict(const schema::RecordDesc& record) {
  py::list fields;
  for (std::size_t i = 0; i < record.field_count; ++i) fields.append(field_dict(record.fields[i]));
  py::dict out;
  out["name"] = text(record.name);
  out["id"] = record.id;
  out["version"] = record.version;
  out["collector"] = text(record.collector);
  out["row_bytes"] = record.row_bytes;
  out["lane_bytes"] = record.lane_bytes;
  out["doc"] = text(record.doc);
  out["fields"] = fields;
  return out;
}

py::dict schema_dict() {
  py::list records, collectors, codes;
  for (const auto& record : schema::kRecords) records.append(record_dict(record));
  for (const auto& collector : schema::kCollectors) {
    py::dict row;
    row["name"] = text(collector.name);
    row["code"] = collector.code;
    row["native"] = collector.native;
    row["doc"] = text(collector.doc);
    collectors.append(row);
  }
  for (const auto& code : schema::kCodes) {
    py::dict row;
    row["enumeration"] = text(code.enumeration);
    row["name"] = text(code.name);
    row["value"] = code.value;
    row["doc"] = text(code.doc);
    codes.append(row);
  }
  py::dict versions;
  versions["major"] = container::kContainerMajor;
  versions["minor"] = container::kContainerMinor;
  versions["oldest_major"] = container::kOldestMajor;
  py::dict out;
  out["records"] = records;
  out["collectors"] = collectors;
  out["codes"] = codes;
  out["container"] = versions;
  return out;
}

}  // namespace

void bind_schema(py::module_& module) {
  module.def("schema", &schema_dict, "Everything in records.def, as plain lists and dicts.");
}
