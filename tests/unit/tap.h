/* The main() of test programs without Criterion, which does not start under ThreadSanitizer: tests
 * run one after another and end the process where they fail. */
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition);  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct tap_test {
    const char *name;
    void (*run)(void);
};

/* What a test waits for comes sooner; only a hang takes as long. */
enum { PATIENCE_MS = 120000 };

/* Runs all of them, `after` (NULL: nothing) behind each. Returns what main() does. */
static inline int tap_run(const struct tap_test *tests, size_t count, void (*after)(void))
{
    printf("1..%zu\n", count);
    for (size_t i = 0; i < count; i++) {
        tests[i].run();
        if (after)
            after();
        printf("ok %zu - %s\n", i + 1, tests[i].name);
        fflush(stdout);
    }
    return 0;
}
