/* Keeps metric families and their series in linked lists that only grow, guarded by `lock`. Values
 * are atomics. Series live as long as `struct metrics`, so a pointer from metrics_get stays valid
 * and counting takes no lock. */
#include "server/observe/metrics.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/arena.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/thread.h"
#include "engine/base/utf8.h"

struct metric {
    const struct metric_family *family;
    struct metric *next;
    const char *labels;
    _Atomic double value;      /* counter, gauge; the sum of a histogram */
    _Atomic uint64_t counts[]; /* of a histogram: one per bound, then one for larger values */
};

struct metric_family {
    struct metric_family *next;
    enum metric_kind kind;
    const char *name, *help;
    struct metric *series, **last_series;
    const double *buckets;
    size_t bucket_count;
};

struct metrics {
    pthread_mutex_t lock;
    struct arena *arena; /* families and series; guarded by `lock` */
    struct metric_family *families,
        **last_family; /* guarded by `lock`, as the series of each family */
};

/* In seconds. The first bound is shorter than the resize of a thumbnail. Only a forward pass that
 * times out takes as long as the last bound. */
static const double default_buckets[] = {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001,
                                         0.0025,  0.005,    0.01,    0.025,  0.05,    0.1,    0.25,
                                         0.5,     1,        2.5,     5,      10,      30};

struct metrics *metrics_create(void)
{
    struct metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics)
        return NULL;
    pthread_mutex_init(&metrics->lock, NULL);
    metrics->last_family = &metrics->families;
    metrics->arena = arena_create(0);
    if (metrics->arena)
        return metrics;
    metrics_free(metrics);
    return NULL;
}

void metrics_free(struct metrics *metrics)
{
    if (!metrics)
        return;
    arena_free(metrics->arena);
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

static struct metric_family *find_family_locked(struct metrics *metrics, enum metric_kind kind,
                                                const char *name, const char *help,
                                                const double *buckets, size_t bucket_count)
{
    for (struct metric_family *family = metrics->families; family; family = family->next) {
        if (strcmp(family->name, name) != 0)
            continue;
        assert(family->kind == kind);
        return family;
    }
    struct metric_family *family = arena_alloc(metrics->arena, 1, sizeof *family);
    if (!family)
        return NULL;
    for (size_t i = 1; i < bucket_count; i++)
        assert(buckets[i] > buckets[i - 1]);
    *family = (struct metric_family){.kind = kind,
                                     .name = name,
                                     .help = help,
                                     .last_series = &family->series,
                                     .buckets = buckets,
                                     .bucket_count = bucket_count};
    *metrics->last_family = family;
    metrics->last_family = &family->next;
    return family;
}

static struct metric *find_series_locked(struct metrics *metrics, struct metric_family *family,
                                         const char *labels)
{
    for (struct metric *series = family->series; series; series = series->next)
        if (!strcmp(series->labels, labels))
            return series;
    size_t counts = family->kind == METRIC_HISTOGRAM ? family->bucket_count + 1 : 0;
    struct metric *series =
        arena_alloc(metrics->arena, 1, sizeof(struct metric) + counts * sizeof(_Atomic uint64_t));
    if (!series || !(series->labels = arena_copy_text(metrics->arena, labels, strlen(labels))))
        return NULL;
    series->family = family;
    *family->last_series = series;
    family->last_series = &series->next;
    return series;
}

static struct metric *get_series(struct metrics *metrics, enum metric_kind kind, const char *name,
                                 const char *help, const char *labels, const double *buckets,
                                 size_t bucket_count)
{
    if (!metrics)
        return NULL;
    LOCK(&metrics->lock);
    struct metric_family *family =
        find_family_locked(metrics, kind, name, help, buckets, bucket_count);
    return family ? find_series_locked(metrics, family, labels) : NULL;
}

struct metric *metrics_get(struct metrics *metrics, enum metric_kind kind, const char *name,
                           const char *help, const char *labels)
{
    return get_series(metrics, kind, name, help, labels, default_buckets,
                      COUNT_OF(default_buckets));
}

struct metric *metrics_histogram(struct metrics *metrics, const char *name, const char *help,
                                 const char *labels, const double *buckets, size_t bucket_count)
{
    return get_series(metrics, METRIC_HISTOGRAM, name, help, labels, buckets, bucket_count);
}

struct metric *metrics_get_with(struct metrics *metrics, enum metric_kind kind, const char *name,
                                const char *help, const char *labels, const char *key,
                                const char *value)
{
    char text[512];
    if (!key)
        return metrics_get(metrics, kind, name, help, labels);
    snprintf(text, sizeof text, "%s%s%s=\"%s\"", labels, *labels ? "," : "", key, value);
    return metrics_get(metrics, kind, name, help, text);
}

void metrics_get_all(struct metrics *metrics, const char *labels, const struct metric_row *rows,
                     size_t count)
{
    for (size_t i = 0; i < count; i++)
        *rows[i].series = metrics_get_with(metrics, rows[i].kind, rows[i].name, rows[i].help,
                                           labels, rows[i].key, rows[i].value);
}

static void add_double(_Atomic double *value, double amount)
{
    double old = atomic_load_explicit(value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(value, &old, old + amount, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

void metric_add(struct metric *metric, double amount)
{
    if (!metric)
        return;
    assert(metric->family->kind == METRIC_GAUGE ||
           (metric->family->kind == METRIC_COUNTER && amount >= 0));
    add_double(&metric->value, amount);
}

void metric_set(struct metric *metric, double value)
{
    if (!metric)
        return;
    assert(metric->family->kind != METRIC_HISTOGRAM);
    atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}

void metric_observe(struct metric *metric, double value)
{
    if (!metric || isnan(value))
        return;
    const struct metric_family *family = metric->family;
    assert(family->kind == METRIC_HISTOGRAM);
    size_t i = 0;
    while (i < family->bucket_count && value > family->buckets[i])
        i++;
    atomic_fetch_add_explicit(&metric->counts[i], 1, memory_order_relaxed);
    add_double(&metric->value, value);
}

static uint64_t histogram_count(const struct metric *metric)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= metric->family->bucket_count; i++)
        count += atomic_load_explicit(&metric->counts[i], memory_order_relaxed);
    return count;
}

double metric_value(const struct metric *metric)
{
    if (!metric)
        return 0;
    if (metric->family->kind == METRIC_HISTOGRAM)
        return (double)histogram_count(metric);
    return atomic_load_explicit(&metric->value, memory_order_relaxed);
}

const char *metrics_escape(const char *value, char *text, size_t size)
{
    size_t used = 0, length;
    for (const char *s = value; *s; s += length) {
        char escaped[8];
        if (utf8_character(s, strnlen(s, 4), &length) == UINT32_MAX)
            snprintf(escaped, sizeof escaped, "\\\\x%02x", (unsigned char)*s);
        else if (*s == '\\' || *s == '"' || *s == '\n')
            snprintf(escaped, sizeof escaped, "\\%c", *s == '\n' ? 'n' : *s);
        else
            snprintf(escaped, sizeof escaped, "%.*s", (int)length, s);
        const size_t put = strlen(escaped);
        if (put >= size - used)
            break;
        memcpy(text + used, escaped, put);
        used += put;
    }
    text[used] = '\0';
    return text;
}

static const char *number_text(double value, char text[static 32])
{
    if (isnan(value))
        return "NaN";
    if (isinf(value))
        return value > 0 ? "+Inf" : "-Inf";
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return text;
}

/* Writes a line: the family's name with `suffix`, {labels,extra} and the value. */
static void write_sample(FILE *out, const struct metric *series, const char *suffix,
                         const char *extra, double value)
{
    char number[32];
    const char *labels = series->labels;
    fprintf(out, "%s%s", series->family->name, suffix);
    if (*labels || *extra)
        fprintf(out, "{%s%s%s}", labels, *labels && *extra ? "," : "", extra);
    fprintf(out, " %s\n", number_text(value, number));
}

static void write_histogram(FILE *out, const struct metric *series)
{
    const struct metric_family *family = series->family;
    uint64_t running = 0;
    for (size_t i = 0; i <= family->bucket_count; i++) {
        char number[32], bound[48];
        double upper = i < family->bucket_count ? family->buckets[i] : INFINITY;
        snprintf(bound, sizeof bound, "le=\"%s\"", number_text(upper, number));
        running += atomic_load_explicit(&series->counts[i], memory_order_relaxed);
        write_sample(out, series, "_bucket", bound, (double)running);
    }
    double sum = atomic_load_explicit(&series->value, memory_order_relaxed);
    write_sample(out, series, "_sum", "", sum);
    write_sample(out, series, "_count", "", (double)running);
}

static void write_family(FILE *out, const struct metric_family *family)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", family->name, family->help, family->name,
            kinds[family->kind]);
    for (const struct metric *series = family->series; series; series = series->next) {
        if (family->kind == METRIC_HISTOGRAM)
            write_histogram(out, series);
        else
            write_sample(out, series, "", "",
                         atomic_load_explicit(&series->value, memory_order_relaxed));
    }
}

char *metrics_text(struct metrics *metrics, size_t *ret_size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_size);
    if (out && metrics) {
        pthread_mutex_lock(&metrics->lock);
        for (const struct metric_family *family = metrics->families; family; family = family->next)
            write_family(out, family);
        pthread_mutex_unlock(&metrics->lock);
    }
    return text_close(out, &text);
}
