/* Counts latencies in buckets of bounded relative width, and reads quantiles from them. */
#include "tests/load/histogram.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Values below 2 * HALF have a bucket each. Above, each octave [HALF << s, 2 * HALF << s) has HALF
 * buckets that are 1 << s wide. */
static size_t bucket_of(int64_t value)
{
    if (value < 0)
        value = 0;
    if (value < 2 * HISTOGRAM_HALF)
        return (size_t)value;
    int top = 63 - __builtin_clzll((unsigned long long)value);
    int shift = top - __builtin_ctz(HISTOGRAM_HALF);
    if (shift > HISTOGRAM_OCTAVES)
        return HISTOGRAM_BUCKETS - 1;
    return (size_t)shift * HISTOGRAM_HALF + (size_t)(value >> shift);
}

static int64_t upper_edge(size_t bucket)
{
    if (bucket < 2 * HISTOGRAM_HALF)
        return (int64_t)bucket;
    size_t shift = bucket / HISTOGRAM_HALF - 1;
    int64_t first = (int64_t)(bucket - shift * HISTOGRAM_HALF) << shift;
    return first + ((int64_t)1 << shift) - 1;
}

void histogram_add(struct histogram *h, int64_t value)
{
    h->counts[bucket_of(value)]++;
    h->total++;
    if (value > h->greatest)
        h->greatest = value;
}

int64_t histogram_quantile(const struct histogram *h, double share)
{
    if (h->total == 0)
        return 0;
    uint64_t rank = (uint64_t)ceil(share * (double)h->total), seen = 0;
    if (rank < 1)
        rank = 1;
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += h->counts[i];
        if (seen >= rank) {
            int64_t edge = upper_edge(i);
            return edge < h->greatest ? edge : h->greatest;
        }
    }
    return h->greatest;
}

void histogram_clear(struct histogram *h)
{
    memset(h, 0, sizeof *h);
}

void histogram_write_json(const struct histogram *h, FILE *out)
{
    const char *comma = "";
    fputc('[', out);
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        if (h->counts[i] == 0)
            continue;
        int64_t edge = upper_edge(i);
        fprintf(out, "%s[%" PRId64 ",%" PRIu64 "]", comma, edge < h->greatest ? edge : h->greatest,
                h->counts[i]);
        comma = ",";
    }
    fputc(']', out);
}
