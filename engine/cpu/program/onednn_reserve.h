/* Private to engine/cpu/program: keeps oneDNN from ending the process when memory runs out.
 *
 * oneDNN is C++. When its containers get no memory they throw std::bad_alloc, which C cannot catch,
 * so the process would abort. It also uses some objects and code buffers without checking that they
 * were allocated. So lensd holds memory in reserve. C++'s operator new, and posix_memalign() and
 * mmap() of few bytes, use it when no other memory is left. One call of oneDNN allocates far less
 * in these ways than the reserve holds. */
#pragma once

#include "engine/base/status.h"

/* Makes the reserve whole, the first time or after it was used. Call it before each call of oneDNN
 * that allocates: STATUS_NO_MEMORY if there is not even memory for the reserve. Any thread. */
enum status onednn_reserve_fill(struct error *err) MUST_USE;
