/* What several backends do to oneDNN at once. A plain program, so that it also runs under
 * ThreadSanitizer. */
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>

#include "engine/base/size.h"
#include "engine/cpu/program/onednn.h"
#include "tests/unit/tap.h"

static void *drop_often(void *unused)
{
    (void)unused;
    for (int i = 0; i < 100000; i++)
        onednn_drop_unused();
    return NULL;
}

static void test_the_cache_keeps_its_capacity(void)
{
    pthread_t threads[4];
    int before, after;
    CHECK(dnnl_get_primitive_cache_capacity(&before) == dnnl_success && before > 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, drop_often, NULL) == 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(dnnl_get_primitive_cache_capacity(&after) == dnnl_success && after == before);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"the cache keeps its capacity", test_the_cache_keeps_its_capacity},
    };
    return tap_run(tests, COUNT_OF(tests), NULL);
}
