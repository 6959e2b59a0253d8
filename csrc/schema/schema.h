// Expands records.def into C++: structs, layout checks, field and code tables.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: everything that records or writes (emit.h, segment_writer), and csrc/python/facts.cpp, which
// hands the same tables to Python. No state, no thread rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace stashtrace::schema {

using Text56 = std::array<char, 56>;

enum class FieldType : std::uint8_t { u16 = 1, i32, u32, i64, u64, f64, text56 };

// As files and Python name it.
inline const char* type_name(FieldType type) noexcept {
  switch (type) {
    case FieldType::u16: return "u16";
    case FieldType::i32: return "i32";
    case FieldType::u32: return "u32";
    case FieldType::i64: return "i64";
    case FieldType::u64: return "u64";
    case FieldType::f64: return "f64";
    case FieldType::text56: return "text56";
  }
  return "";
}

template <typename T>
consteval FieldType field_type() {
  if constexpr (std::is_same_v<T, std::uint16_t>) return FieldType::u16;
  else if constexpr (std::is_same_v<T, std::int32_t>) return FieldType::i32;
  else if constexpr (std::is_same_v<T, std::uint32_t>) return FieldType::u32;
  else if constexpr (std::is_same_v<T, std::int64_t>) return FieldType::i64;
  else if constexpr (std::is_same_v<T, std::uint64_t>) return FieldType::u64;
  else if constexpr (std::is_same_v<T, double>) return FieldType::f64;
  else {
    static_assert(std::is_same_v<T, Text56>, "a type that files cannot hold");
    return FieldType::text56;
  }
}

struct FieldDesc {
  std::string_view name;
  FieldType type;
  std::uint16_t offset_bytes;
  std::uint16_t size_bytes;
  std::string_view doc;
};

struct RecordDesc {
  std::string_view name;
  std::string_view collector;
  std::uint16_t id;
  std::uint16_t version;
  std::uint32_t row_bytes;
  std::uint32_t ring_bytes;
  std::string_view doc;
  const FieldDesc* fields;
  std::size_t field_count;
};

struct CollectorDesc {
  std::string_view name;
  std::uint16_t code;
  bool native;
  std::string_view doc;
};

struct CodeDesc {
  std::string_view enumeration;
  std::string_view name;
  std::uint32_t value;
  std::string_view doc;
};

// Pass 1: structs. Each knows its id and its place in kRecords (its ring index).
#define COLLECTOR(name, code, side, doc)
#define CODES(Enum, doc)
#define CODE(Enum, name, value, doc)
#define STASHTRACE_MEMBER(type, name, doc) type name;
#define RECORD(collector, Struct, name, id, version, ring_bytes, doc, FIELDS) \
  struct Struct {                                                             \
    FIELDS(STASHTRACE_MEMBER)                                                 \
    static constexpr std::uint16_t kId = id;                                  \
  };
#include "schema/records.def"
#undef RECORD
#undef STASHTRACE_MEMBER

// Pass 2: field tables and layout checks.
#define STASHTRACE_FIELD(type, name, doc)                                             \
  FieldDesc{#name, field_type<type>(), static_cast<std::uint16_t>(offsetof(S, name)), \
            static_cast<std::uint16_t>(sizeof(type)), doc},
#define STASHTRACE_SIZE(type, name, doc) +sizeof(type)
#define RECORD(collector, Struct, name, id, version, ring_bytes, doc, FIELDS)                    \
  template <typename S>                                                                          \
  inline constexpr auto name##_fields_of = std::to_array<FieldDesc>({FIELDS(STASHTRACE_FIELD)}); \
  inline constexpr auto& name##_fields = name##_fields_of<Struct>;                               \
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);                \
  static_assert(sizeof(Struct) == (0 FIELDS(STASHTRACE_SIZE)), #Struct " has padding");          \
  static_assert((ring_bytes) % 4096 == 0);
#include "schema/records.def"
#undef RECORD
#undef STASHTRACE_SIZE
#undef STASHTRACE_FIELD

// Pass 3: the table of records, in the order of records.def.
#define RECORD(collector, Struct, name, id, version, ring_bytes, doc, FIELDS) \
  RecordDesc{                                                                 \
      #name, #collector, id, version, sizeof(Struct), ring_bytes, doc, name##_fields.data(), name##_fields.size()},
inline constexpr auto kRecords = std::to_array<RecordDesc>({
#include "schema/records.def"
});
#undef RECORD
#undef COLLECTOR
#undef CODE

// Pass 4: collectors, enumerations.
#define RECORD(collector, Struct, name, id, version, ring_bytes, doc, FIELDS)
#define COLLECTOR(name, code, side, doc) CollectorDesc{#name, code, SideIsNative::side, doc},
#define CODE(Enum, name, value, doc)
namespace detail {
struct SideIsNative {
  static constexpr bool native = true;
  static constexpr bool probe = false;
};
}  // namespace detail
using detail::SideIsNative;
inline constexpr auto kCollectors = std::to_array<CollectorDesc>({
#include "schema/records.def"
});
#undef COLLECTOR
#undef CODE
#define COLLECTOR(name, code, side, doc)
#define CODE(Enum, name, value, doc) CodeDesc{#Enum, #name, value, doc},
inline constexpr auto kCodes = std::to_array<CodeDesc>({
#include "schema/records.def"
});
#undef CODE

// Pass 5: the enumerations themselves, as scoped constants: io_op::read is codes::IoOp::read.
namespace codes {
#undef CODES
#define CODES(Enum, doc) \
  namespace Enum {}
#define CODE(Enum, name, value, doc)           \
  namespace Enum {                             \
  inline constexpr std::uint16_t name = value; \
  }
#include "schema/records.def"
#undef CODE
#undef CODES
}  // namespace codes
#undef COLLECTOR
#undef RECORD

void this_type_is_not_in_records_def();  // never defined: reaching it stops the compiler

// Index of a record type in kRecords; used as the ring number of a thread.
template <typename R>
consteval std::size_t record_index() {
  for (std::size_t i = 0; i < kRecords.size(); ++i)
    if (kRecords[i].id == R::kId) return i;
  this_type_is_not_in_records_def();
}

consteval bool ids_are_unique() {
  for (std::size_t i = 0; i < kRecords.size(); ++i)
    for (std::size_t j = i + 1; j < kRecords.size(); ++j)
      if (kRecords[i].id == kRecords[j].id || kRecords[i].name == kRecords[j].name) return false;
  for (std::size_t i = 0; i < kCodes.size(); ++i)
    for (std::size_t j = i + 1; j < kCodes.size(); ++j)
      if (kCodes[i].enumeration == kCodes[j].enumeration &&
          (kCodes[i].value == kCodes[j].value || kCodes[i].name == kCodes[j].name))
        return false;
  return true;
}
static_assert(ids_are_unique());

}  // namespace stashtrace::schema
