/* Private to engine/cpu/program: keeps oneDNN from ending the process when memory runs out.
 *
 * oneDNN is C++. When its containers get no memory they throw std::bad_alloc, which C cannot catch,
 * so the process would abort; and it uses some of its objects and code buffers without looking
 * whether it got them. So lensd holds memory in reserve, which C++'s operator new, and
 * posix_memalign() and mmap() for few bytes, take when there is no other. What one call of oneDNN
 * allocates in these ways is far smaller than the reserve. */
#pragma once

#include "engine/base/status.h"

/* Makes the reserve whole, the first time or after it was used. Call it before each call of oneDNN
 * that allocates: STATUS_NO_MEMORY if there is not even memory for the reserve. Any thread. */
enum status onednn_reserve_fill(struct error *err) MUST_USE;
