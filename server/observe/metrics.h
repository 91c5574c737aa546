/* Counters, gauges and histograms, written as Prometheus text (exposition format 0.0.4).
 *
 * A family (name, help, kind, buckets) is declared by its first metrics_get. Values are lock-free
 * atomics: any thread may count, and /metrics may be read at any time. A labelled series is made
 * once (under a lock) and then kept; callers on a hot path keep the pointer. The number of series
 * is bounded by what the server knows (models, devices, statuses), never by what clients send. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct metrics;
struct metric; /* one series: a family with fixed labels */

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* NULL when out of memory. metrics_free takes NULL; no series may be used afterwards. */
struct metrics *metrics_create(void);
void metrics_free(struct metrics *metrics);

/* The series of family `name` ("lensd_images_total") with Prometheus labels written as in the text
 * format ("model=\"digits\",result=\"ok\"", "" for none); made at the first call, the same pointer
 * ever after. `help`: one plain sentence. `buckets`: upper bounds for a histogram (seconds, or
 * sizes), ascending, without +Inf; NULL = the default bounds in seconds (10 us … 30 s); those of
 * the first call hold for the family. Label values must have been escaped with metrics_escape().
 * Asking for a family again as another kind is a bug of the caller (asserted).
 * NULL when out of memory or metrics is NULL; every function below takes NULL and does nothing. */
struct metric *metrics_get(struct metrics *metrics, enum metric_kind kind, const char *name,
                           const char *help, const char *labels, const double *buckets,
                           size_t bucket_count);

void metric_add(struct metric *metric, double amount); /* counter (amount >= 0), gauge */
void metric_set(struct metric *metric, double value);  /* gauge; counter kept elsewhere */
/* Histogram; a value equal to a bound falls in that bound's bucket, NaN is left out. */
void metric_observe(struct metric *metric, double value);
double metric_value(const struct metric *metric); /* counter, gauge; histogram: count; NULL: 0 */

/* Escapes a label value (backslash, quote, newline) into text, cut to size between characters; a
 * byte that is not UTF-8 becomes \xNN. Returns text. size >= 1. */
const char *metrics_escape(const char *value, char *text, size_t size);

/* The whole text; malloc'ed, the caller frees; NULL when out of memory. *ret_size without the
 * terminator. Passes `promtool check metrics`. The values of one histogram agree with each other
 * (+Inf bucket equals count); different series may be from slightly different moments. */
char *metrics_text(struct metrics *metrics, size_t *ret_size);
