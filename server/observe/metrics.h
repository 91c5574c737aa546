/* Counters and histograms, written as Prometheus text (exposition format 0.0.4).
 *
 * Every family is declared once in METRIC_LIST. Values are lock-free atomics: any thread may count,
 * and /metrics may be read at any time. A labelled series is made once (under a lock) and then kept;
 * the number of series is bounded by what the server knows (models, devices, statuses), never by
 * what clients send. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct metrics;
struct metric; /* one series: a family with fixed labels */

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* NULL when out of memory. */
struct metrics *metrics_create(void);
void metrics_free(struct metrics *metrics);

/* The series of family `name` ("lensd_images_total") with Prometheus labels written as in the text
 * format ("model=\"digits\",result=\"ok\"", "" for none); made at the first call, the same pointer
 * ever after. `buckets`: upper bounds for a histogram (seconds, or sizes), ascending; NULL = the
 * default bounds in seconds. Label values must have been escaped with metrics_escape().
 * NULL when out of memory or metrics is NULL; every function below takes NULL and does nothing. */
struct metric *metrics_get(struct metrics *metrics, enum metric_kind kind, const char *name,
                           const char *help, const char *labels, const double *buckets,
                           size_t bucket_count);

void metric_add(struct metric *metric, double amount);     /* counter, gauge */
void metric_set(struct metric *metric, double value);      /* gauge */
void metric_observe(struct metric *metric, double value);  /* histogram */
double metric_value(const struct metric *metric);          /* counter, gauge; histogram: count */

/* Escapes a label value (backslash, quote, newline) into text, cut to size; returns text. */
const char *metrics_escape(const char *value, char *text, size_t size);

/* The whole text; malloc'ed, the caller frees; NULL when out of memory. *ret_size without the
 * terminator. Passes `promtool check metrics`. */
char *metrics_text(struct metrics *metrics, size_t *ret_size);
