/* Counters, gauges and histograms, written as Prometheus text (exposition format 0.0.4).
 *
 * The first metrics_get() of a family sets its help, kind and buckets. Values are atomics: any
 * thread may change or read them at any time without a lock. metrics_get() takes a lock, so callers
 * on a hot path keep the pointer to the series. Labels name the server's own objects (models,
 * devices, statuses), so that clients cannot add series. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct metrics;
struct metric; /* a series: one value, or one histogram, of a family */

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* Returns NULL when out of memory. metrics_free() accepts NULL, and frees all series. */
struct metrics *metrics_create(void);
void metrics_free(struct metrics *metrics);

/* Returns the series of family `name` ("lensd_images_total") with Prometheus labels in the text
 * format ("model=\"digits\",result=\"ok\"", "" for none); the first call creates it, and later
 * calls return the same pointer. `help` is a sentence; `name` and `help` must be constants. The
 * buckets of a histogram are seconds, from 10 microseconds to 30 s. Label values must have been
 * escaped with metrics_escape(). The kind of a family must not change (asserted). Returns NULL when
 * out of memory, or if `metrics` is NULL. The functions below accept NULL and then do nothing. */
struct metric *metrics_get(struct metrics *metrics, enum metric_kind kind, const char *name,
                           const char *help, const char *labels);

/* Like metrics_get(), for a histogram with other buckets: ascending upper bounds, without +Inf. The
 * first call sets the buckets of the family; they must be constants. */
struct metric *metrics_histogram(struct metrics *metrics, const char *name, const char *help,
                                 const char *labels, const double *buckets, size_t bucket_count);

/* Like metrics_get(), with the label key="value" after `labels`; `value` must need no escaping.
 * `key` NULL: no further label. */
struct metric *metrics_get_with(struct metrics *metrics, enum metric_kind kind, const char *name,
                                const char *help, const char *labels, const char *key,
                                const char *value);

/* Arguments of metrics_get_with() for one series. metrics_get_all() stores the series in
 * *series. */
struct metric_row {
    struct metric **series;
    enum metric_kind kind;
    const char *name, *help, *key, *value; /* key NULL: no further label */
};
void metrics_get_all(struct metrics *metrics, const char *labels, const struct metric_row *rows,
                     size_t count);

void metric_add(struct metric *metric, double amount); /* for a counter (amount >= 0) or gauge */
void metric_set(struct metric *metric,
                double value); /* for a gauge, or a counter that other code counts */
/* For a histogram. A value that equals a bound counts in this bound's bucket. Ignores NaN. */
void metric_observe(struct metric *metric, double value);
double metric_value(const struct metric *metric); /* a histogram's count of values; 0 for NULL */

/* Copies a label value to `text`; escapes backslash, quote and newline, and replaces a byte that is
 * not UTF-8 by \xNN. Cuts the result between characters if `size` bytes are too few. Returns
 * `text`. */
const char *metrics_escape(const char *value, char *text, size_t size);

/* Returns all metrics as text, which the caller frees; NULL when out of memory. *ret_size does not
 * count the terminator. In a histogram the +Inf bucket equals the count. Series are read one after
 * another, while other threads may change them. */
char *metrics_text(struct metrics *metrics, size_t *ret_size);
