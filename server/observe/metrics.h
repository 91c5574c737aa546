/* Counters, gauges and histograms, written as Prometheus text (exposition format 0.0.4).
 *
 * The first metrics_get of a family declares its name, help, kind and buckets. Values are lock-free
 * atomics: any thread may count, and /metrics may be read at any time. A labelled series is created
 * once (under a lock) and then kept; callers on a hot path keep the pointer. Labels name the
 * server's own objects (models, devices, statuses), so client input never adds series. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct metrics;
struct metric; /* one series: a family with fixed labels */

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* Returns NULL when out of memory. metrics_free() accepts NULL, and makes all series invalid. */
struct metrics *metrics_create(void);
void metrics_free(struct metrics *metrics);

/* Returns the series of family `name` ("lensd_images_total") with Prometheus labels in the text
 * format ("model=\"digits\",result=\"ok\"", "" for none); the first call creates it, and later
 * calls return the same pointer. `help`: one plain sentence. Keeps the pointers `name` and `help`.
 * The buckets of a histogram are for seconds (10 us … 30 s). Label values must have been escaped
 * with metrics_escape(). The kind of a family must not change (asserted). Returns NULL when out of
 * memory or metrics is NULL; every function below accepts NULL and does nothing. */
struct metric *metrics_get(struct metrics *metrics, enum metric_kind kind, const char *name,
                           const char *help, const char *labels);

/* Like metrics_get(), for a histogram with other buckets: ascending upper bounds, without +Inf. The
 * first call sets the buckets of the family, which keeps the pointer `buckets`. */
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

void metric_add(struct metric *metric, double amount); /* counter (amount >= 0), gauge */
void metric_set(struct metric *metric, double value); /* gauge, or counter that is kept elsewhere */
/* Histogram; a value equal to a bound falls into that bound's bucket, NaN is ignored. */
void metric_observe(struct metric *metric, double value);
double metric_value(const struct metric *metric); /* of a histogram: its count; NULL: 0 */

/* Escapes a label value (backslash, quote, newline) into `text`, cut between characters to fit into
 * `size` bytes. A byte that is not UTF-8 becomes \xNN. Returns `text`. size >= 1. */
const char *metrics_escape(const char *value, char *text, size_t size);

/* Returns all metrics as text, malloc'ed, for the caller to free; NULL when out of memory.
 * *ret_size excludes the terminator. Passes `promtool check metrics`. The values of a histogram are
 * consistent (the +Inf bucket equals the count); series may be from slightly different moments. */
char *metrics_text(struct metrics *metrics, size_t *ret_size);
