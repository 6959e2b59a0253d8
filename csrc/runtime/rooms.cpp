// The rooms that Runtime starts. CMake writes the list from the folders it finds. SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.h"

namespace stashtrace {

namespace rooms {
#define STASHTRACE_ROOM(name) Collector& name() noexcept;
#include "collector_rooms.inc"
#undef STASHTRACE_ROOM
}  // namespace rooms

namespace {
// The last entry is a placeholder, so that the array is never empty.
constinit Room g_rooms[] = {
#define STASHTRACE_ROOM(name) Room{#name, &rooms::name, {}, false},
#include "collector_rooms.inc"
#undef STASHTRACE_ROOM
    Room{nullptr, nullptr, {}, false},
};
}  // namespace

RoomList room_list() noexcept { return {g_rooms, sizeof g_rooms / sizeof g_rooms[0] - 1}; }

}  // namespace stashtrace
