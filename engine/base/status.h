/* Statuses and errors: how functions of lensd report failure.
 *
 * A function that can fail for more than one cause returns `enum status` (STATUS_OK is 0). Its last
 * parameter is a caller-owned `struct error *`, which it fills only on failure; NULL if the caller
 * wants no text. The text is a sentence for a person. It names the thing, the expected and the
 * actual value, and what to do. It never ends in a newline.
 *
 * Bad input, a bad model, a lost device and a failed allocation are statuses; assert() is for
 * lensd's own bugs. Only server/app ends the process. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* X(NAME, number, machine word in JSON answers, HTTP status). The tens of a number are its family:
 * 10 caller, 20 model, 30 resources, 40 device, 50 time, 60 a bug of lensd. */
#define STATUS_LIST(X)                                                                             \
    X(OK, 0, "ok", 200)                                                                            \
    X(INVALID, 10, "invalid_request", 400)                                                         \
    X(BAD_IMAGE, 11, "bad_image", 400)                                                             \
    X(UNSUPPORTED_MEDIA, 12, "unsupported_media_type", 415)                                        \
    X(TOO_LARGE, 13, "too_large", 413)                                                             \
    X(NOT_FOUND, 14, "not_found", 404)                                                             \
    X(METHOD, 15, "method_not_allowed", 405)                                                       \
    X(CANCELLED, 16, "cancelled", 499)                                                             \
    X(CONFIG, 17, "bad_configuration", 500)                                                        \
    X(MODEL, 20, "bad_model", 500)                                                                 \
    X(UNSUPPORTED, 21, "unsupported_model", 500)                                                   \
    X(SHAPE, 22, "shape_mismatch", 500)                                                            \
    X(NUMERIC, 23, "not_finite", 500)                                                              \
    X(NO_MEMORY, 30, "out_of_memory", 500)                                                         \
    X(IO, 31, "io_error", 500)                                                                     \
    X(SHORT_OF_MEMORY, 32, "insufficient_memory", 503)                                             \
    X(DEVICE, 40, "device_error", 503)                                                             \
    X(DEVICE_MEMORY, 41, "device_out_of_memory", 503)                                              \
    X(OVERLOADED, 50, "overloaded", 503)                                                           \
    X(NOT_READY, 51, "not_ready", 503)                                                             \
    X(DRAINING, 52, "draining", 503)                                                               \
    X(TIMEOUT, 53, "deadline_exceeded", 504)                                                       \
    X(REQUEST_TIMEOUT, 54, "request_timeout", 408)                                                 \
    X(INTERNAL, 60, "internal", 500)

enum status {
#define STATUS_ENUM(name, number, word, http) STATUS_##name = number,
    STATUS_LIST(STATUS_ENUM)
#undef STATUS_ENUM
};

struct error {
    enum status status;
    bool is_advised;   /* the message already ends with advice: error_advise() */
    int retry_after_s; /* seconds until a retry may succeed, 1 if unknown; 0: no retry helps */
    char message[480]; /* UTF-8 sentence, always terminated; long texts end in "…" */
};

/* The status's machine word ("bad_image"); "internal" for an unknown number. */
const char *status_word(enum status status);

/* The status's HTTP status code (400, 503 …); 500 for an unknown number. */
int status_http(enum status status);

/* True if the host or a device has no memory left. */
static inline bool status_lacks_memory(enum status status)
{
    return status == STATUS_NO_MEMORY || status == STATUS_DEVICE_MEMORY;
}

/* Formats the sentence into *err (unless it is NULL) and returns `status`, for `return
 * error_set(err, STATUS_INVALID, "…", …);`. Control bytes in names from files become '?'. A text
 * that is too long is truncated. Thread-safe. */
enum status error_set(struct error *err, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __clang_analyzer__
/* Tells the analyzer, which sees no other file, that error_set() returns a failure. */
#define error_set(err, status, ...) ((void)(error_set)((err), (status), __VA_ARGS__), (status))
#endif

/* Sets "out of memory" or "out of memory WHAT", with WHAT such as "while reading labels". */
static inline enum status error_no_memory(struct error *err, const char *what)
{
    (void)error_set(err, STATUS_NO_MEMORY, "out of memory%s%s", what ? " " : "", what ? what : "");
    return STATUS_NO_MEMORY;
}

/* For TRY: both functions return STATUS_NO_MEMORY if an allocation has failed. check_memory() sets
 * the error; allocated() is for memory from a function that has set it. */
static inline enum status allocated(const void *memory)
{
    return memory ? STATUS_OK : STATUS_NO_MEMORY;
}

static inline enum status check_memory(bool is_allocated, const char *what, struct error *err)
{
    return is_allocated ? STATUS_OK : error_no_memory(err, what);
}

/* Appends "; advice" to the message in *err, unless it already has advice: code nearer to the fault
 * knows better. If space is short, the message's end is cut. Returns err's status, or
 * STATUS_INTERNAL if `err` is NULL. */
enum status error_advise(struct error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " before the message in *err. If space is short, the prefix's start is cut. The
 * return value is as in error_advise(). */
enum status error_prefix(struct error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define MUST_USE __attribute__((warn_unused_result))

/* Returns a failure to the caller. Only TRY and IF_OK hide control flow. */
#define TRY(expression)                                                                            \
    do {                                                                                           \
        enum status try_status_ = (expression);                                                    \
        if (try_status_ != STATUS_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

/* For functions that free memory at their end: sets `status` to the result of the expression,
 * unless an earlier step has failed. */
#define IF_OK(status, expression)                                                                  \
    do {                                                                                           \
        if ((status) == STATUS_OK)                                                                 \
            (status) = (expression);                                                               \
    } while (0)
