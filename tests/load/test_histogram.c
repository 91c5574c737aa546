/* The histogram of the load generator: quantiles within 0.1 % of the true ones, whatever the
 * values. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "tests/load/histogram.h"

static struct histogram h;

static int compare(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

Test(histogram, small_values_are_exact)
{
    for (int64_t value = 0; value < 2000; value++)
        histogram_add(&h, value);
    cr_assert_eq(histogram_quantile(&h, 0.5), 999);
    cr_assert_eq(histogram_quantile(&h, 0), 0);
    cr_assert_eq(histogram_quantile(&h, 1), 1999);
}

Test(histogram, quantiles_lie_within_a_thousandth)
{
    enum { COUNT = 20000 };
    static int64_t values[COUNT];
    uint64_t state = 88172645463325252ULL;
    for (int i = 0; i < COUNT; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values[i] = (int64_t)(state >> (24 + state % 38)); /* 1 us to 12 days */
        histogram_add(&h, values[i]);
    }
    qsort(values, COUNT, sizeof values[0], compare);
    const double shares[] = {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        int64_t exact = values[(size_t)(shares[i] * COUNT + 0.9999999) - 1];
        int64_t found = histogram_quantile(&h, shares[i]);
        cr_assert(found >= exact && (double)(found - exact) <= 0.001 * (double)exact,
                  "quantile %g: %lld, truly %lld", shares[i], (long long)found, (long long)exact);
    }
    cr_assert_eq(histogram_quantile(&h, 1), values[COUNT - 1]);
}

Test(histogram, takes_what_is_out_of_range)
{
    cr_assert_eq(histogram_quantile(&h, 0.5), 0);
    histogram_add(&h, -5);
    histogram_add(&h, INT64_MAX);
    cr_assert_eq(h.total, 2);
    cr_assert_eq(histogram_quantile(&h, 0.5), 0);
    cr_assert_gt(histogram_quantile(&h, 1), (int64_t)1 << 40);
    histogram_clear(&h);
    cr_assert_eq(h.total, 0);
    cr_assert_eq(histogram_quantile(&h, 1), 0);
}
