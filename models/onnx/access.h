/* Private to models/: what to do about a file or folder that cannot be read. */
#pragma once

/* The end of a sentence that gives strerror(error) for `path`; "" where there is nothing to advise.
 * Static. */
const char *access_advice(const char *path, int error);
