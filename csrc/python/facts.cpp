// What the recorder knows, as Python's lists and dicts: the schema, the configuration, its counts.
// SPDX-License-Identifier: Apache-2.0
#include "python/arguments.h"
#include "python/functions.h"
#include "runtime/capi.h"
#include "schema/container.h"
#include "schema/schema.h"

namespace stashtrace::python {

namespace {

// The texts of the schema are literals, which end with a zero.
Object* field_dict(const schema::FieldDesc& field) noexcept {
  return api().Py_BuildValue("{s:s,s:s,s:I,s:I,s:s}", "name", field.name.data(), "type", schema::type_name(field.type),
                             "offset", static_cast<unsigned>(field.offset_bytes), "size",
                             static_cast<unsigned>(field.size_bytes), "doc", field.doc.data());
}

// A list of what `make` returns for each; null, with an exception, if any of it failed.
template <typename Rows, typename Make>
Object* list_of(const Rows& rows, Make make) noexcept {
  Owned list(api().PyList_New(0));
  if (!list) return nullptr;
  for (const auto& row : rows) {
    const Owned item(make(row));
    if (!item || api().PyList_Append(list.get(), item.get()) != 0) return nullptr;
  }
  return list.release();
}

struct Fields {
  const schema::RecordDesc& record;
  const schema::FieldDesc* begin() const noexcept { return record.fields; }
  const schema::FieldDesc* end() const noexcept { return record.fields + record.field_count; }
};

// "N" takes over a reference, and passes on the failure if it is null.
Object* record_dict(const schema::RecordDesc& record) noexcept {
  return api().Py_BuildValue("{s:s,s:I,s:I,s:s,s:I,s:I,s:s,s:N}", "name", record.name.data(), "id",
                             static_cast<unsigned>(record.id), "version", static_cast<unsigned>(record.version),
                             "collector", record.collector.data(), "row_bytes", static_cast<unsigned>(record.row_bytes),
                             "ring_bytes", static_cast<unsigned>(record.ring_bytes), "doc", record.doc.data(), "fields",
                             list_of(Fields{record}, field_dict));
}

Object* collector_dict(const schema::CollectorDesc& collector) noexcept {
  return api().Py_BuildValue("{s:s,s:I,s:N,s:s}", "name", collector.name.data(), "code",
                             static_cast<unsigned>(collector.code), "native", api().PyBool_FromLong(collector.native),
                             "doc", collector.doc.data());
}

Object* code_dict(const schema::CodeDesc& code) noexcept {
  return api().Py_BuildValue("{s:s,s:s,s:I,s:s}", "enumeration", code.enumeration.data(), "name", code.name.data(),
                             "value", static_cast<unsigned>(code.value), "doc", code.doc.data());
}

bool add(const Owned& dict, const char* key, Object* value) noexcept {
  const Owned held(value);
  return held && api().PyDict_SetItemString(dict.get(), key, held.get()) == 0;
}

}  // namespace

STASHTRACE_FUNCTION(schema) {
  (void)self, (void)given;
  if (!expect("schema", count, 0)) return nullptr;
  return api().Py_BuildValue(
      "{s:N,s:N,s:N,s:{s:I,s:I,s:I}}", "records", list_of(schema::kRecords, record_dict), "collectors",
      list_of(schema::kCollectors, collector_dict), "codes", list_of(schema::kCodes, code_dict), "container", "major",
      static_cast<unsigned>(container::kContainerMajor), "minor", static_cast<unsigned>(container::kContainerMinor),
      "oldest_major", static_cast<unsigned>(container::kOldestMajor));
}

STASHTRACE_FUNCTION(config) {
  (void)self, (void)given;
  if (!expect("config", count, 0)) return nullptr;
  stashtrace_config_t raw;
  stashtrace_config(&raw);
  Owned names(api().PyList_New(0));
  if (!names) return nullptr;
  for (const auto& collector : schema::kCollectors) {
    if ((raw.collectors >> collector.code & 1) == 0) continue;
    const Owned name(api().PyUnicode_FromString(collector.name.data()));
    if (!name || api().PyList_Append(names.get(), name.get()) != 0) return nullptr;
  }
  return api().Py_BuildValue("{s:N,s:s,s:s,s:N,s:L,s:I,s:s,s:s}", "dir", api().PyUnicode_DecodeFSDefault(raw.dir),
                             "run_id", raw.run_id, "steps", raw.steps, "collectors", names.release(),
                             "wait_threshold_ns", static_cast<long long>(raw.wait_threshold_ns), "sample_ms",
                             static_cast<unsigned>(raw.sample_ms), "drainer", raw.drainer, "log", raw.log);
}

STASHTRACE_FUNCTION(stats) {
  (void)self, (void)given;
  if (!expect("stats", count, 0)) return nullptr;
  stashtrace_stats_t raw;
  stashtrace_stats(&raw);
  Owned out(api().PyDict_New());
  if (!out) return nullptr;
  const struct {
    const char* key;
    std::uint64_t value;
  } counts[] = {{"rows_count", raw.rows_count},
                {"written_rows_count", raw.written_rows_count},
                {"dropped_rows_count", raw.dropped_rows_count},
                {"rings_count", raw.rings_count},
                {"ring_bytes", raw.ring_bytes},
                {"written_bytes", raw.written_bytes},
                {"segments_count", raw.segments_count}};
  for (const auto& [key, value] : counts)
    if (!add(out, key, api().PyLong_FromUnsignedLongLong(value))) return nullptr;
  const bool complete =
      add(out, "drainer_cpu_ns", api().Py_BuildValue("L", static_cast<long long>(raw.drainer_cpu_ns))) &&
      add(out, "self_drain_ns", api().Py_BuildValue("L", static_cast<long long>(raw.self_drain_ns))) &&
      add(out, "incarnation", api().Py_BuildValue("i", static_cast<int>(raw.incarnation))) &&
      add(out, "drainer_running", api().PyBool_FromLong(raw.drainer_running)) &&
      add(out, "stash_path", api().PyUnicode_DecodeFSDefault(stashtrace_stash_path()));
  return complete ? out.release() : nullptr;
}

}  // namespace stashtrace::python
