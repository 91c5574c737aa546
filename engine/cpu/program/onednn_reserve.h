/* Private to engine/cpu/program: keeps oneDNN from ending the process when memory runs out.
 *
 * oneDNN is C++. When its containers get no memory, they throw std::bad_alloc. C cannot catch this,
 * so the process would abort. oneDNN also uses some objects and code buffers without checking their
 * allocation. Therefore lensd holds memory in reserve. C++'s operator new, and small
 * posix_memalign() and mmap() calls, use it when no other memory is left. One call of oneDNN
 * allocates far less with these functions than the reserve holds. */
#pragma once

#include "engine/base/status.h"

/* Fills the reserve, for the first time or after use. Call it before each call of oneDNN that
 * allocates. STATUS_NO_MEMORY if there is no memory for the reserve. Any thread. */
enum status onednn_reserve_fill(struct error *err) MUST_USE;
