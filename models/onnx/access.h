/* Private to models/: advice about a file or folder that cannot be read. */
#pragma once

/* Returns advice to append to a sentence about strerror(error) for `path`, or "". The text is
 * static. */
const char *access_advice(const char *path, int error);
