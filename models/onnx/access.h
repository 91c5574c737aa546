/* Private to models/: advice about a file or folder that cannot be read. */
#pragma once

/* Advice to append to a sentence about strerror(error) for `path`; "" if there is none. Static. */
const char *access_advice(const char *path, int error);
