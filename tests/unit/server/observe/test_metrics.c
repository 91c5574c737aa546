/* Metrics: the exact exposition text, escapes, buckets, and promtool's opinion where it is there.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/observe/metrics.h"

static char *text_of(struct metrics *metrics)
{
    size_t size = 0;
    char *text = metrics_text(metrics, &size);
    cr_assert_not_null(text);
    cr_assert_eq(strlen(text), size);
    return text;
}

Test(metrics, exposition_text)
{
    static const double sizes[] = {1, 2, 4};
    struct metrics *metrics = metrics_create();
    struct metric *ok = metrics_get(metrics, METRIC_COUNTER, "lensd_images_total", "Images.",
                                    "model=\"a\",result=\"ok\"");
    struct metric *bad = metrics_get(metrics, METRIC_COUNTER, "lensd_images_total", "Images.",
                                     "model=\"a\",result=\"bad_image\"");
    struct metric *queue =
        metrics_get(metrics, METRIC_GAUGE, "lensd_queue_images", "Waiting images.", "");
    struct metric *batch = metrics_histogram(metrics, "lensd_batch_size", "Images per batch.",
                                             "model=\"a\"", sizes, COUNT_OF(sizes));
    metric_add(ok, 1);
    metric_add(ok, 2);
    metric_add(bad, 1);
    metric_set(queue, 7);
    metric_add(queue, -2.5);
    for (int i = 0; i <= 5; i++)
        metric_observe(batch, i);
    metric_observe(batch, NAN);

    char *text = text_of(metrics);
    cr_assert_str_eq(text, "# HELP lensd_images_total Images.\n"
                           "# TYPE lensd_images_total counter\n"
                           "lensd_images_total{model=\"a\",result=\"ok\"} 3\n"
                           "lensd_images_total{model=\"a\",result=\"bad_image\"} 1\n"
                           "# HELP lensd_queue_images Waiting images.\n"
                           "# TYPE lensd_queue_images gauge\n"
                           "lensd_queue_images 4.5\n"
                           "# HELP lensd_batch_size Images per batch.\n"
                           "# TYPE lensd_batch_size histogram\n"
                           "lensd_batch_size_bucket{model=\"a\",le=\"1\"} 2\n"
                           "lensd_batch_size_bucket{model=\"a\",le=\"2\"} 3\n"
                           "lensd_batch_size_bucket{model=\"a\",le=\"4\"} 5\n"
                           "lensd_batch_size_bucket{model=\"a\",le=\"+Inf\"} 6\n"
                           "lensd_batch_size_sum{model=\"a\"} 15\n"
                           "lensd_batch_size_count{model=\"a\"} 6\n");
    cr_assert_eq(metric_value(ok), 3);
    cr_assert_eq(metric_value(queue), 4.5);
    cr_assert_eq(metric_value(batch), 6);
    free(text);
    metrics_free(metrics);
}

Test(metrics, a_series_is_made_once)
{
    struct metrics *metrics = metrics_create();
    struct metric *first = metrics_get(metrics, METRIC_GAUGE, "g", "G.", "a=\"1\"");
    cr_assert_eq(first, metrics_get(metrics, METRIC_GAUGE, "g", "G.", "a=\"1\""));
    cr_assert_neq(first, metrics_get(metrics, METRIC_GAUGE, "g", "G.", "a=\"2\""));
    metrics_free(metrics);
}

Test(metrics, numbers_read_back_exactly)
{
    static const double values[] = {0,    0.1,       1e-9,  1.0 / 3,  123456789012345,
                                    1e22, -0.000025, 1e300, INFINITY, -INFINITY};
    struct metrics *metrics = metrics_create();
    struct metric *gauge = metrics_get(metrics, METRIC_GAUGE, "g", "G.", "");
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        metric_set(gauge, values[i]);
        char *text = text_of(metrics);
        cr_assert_eq(strtod(strstr(text, "\ng ") + 3, NULL), values[i], "%g in %s", values[i],
                     text);
        free(text);
    }
    metric_set(gauge, NAN);
    char *text = text_of(metrics);
    cr_assert(strstr(text, "\ng NaN\n"));
    free(text);
    metrics_free(metrics);
}

Test(metrics, label_values_are_escaped_and_cut_between_characters)
{
    static const struct {
        const char *value;
        size_t size;
        const char *escaped;
    } cases[] = {
        {"plain", 32, "plain"},
        {"a\"b\\c\nd", 32, "a\\\"b\\\\c\\nd"},
        {"abc", 3, "ab"},
        {"a\"", 3, "a"},
        {"a\"", 4, "a\\\""},
        {"x\xc3\xa4", 3, "x"},
        {"x\xc3\xa4", 4, "x\xc3\xa4"},
        {"abc", 1, ""},
        {"a\xff\xc3", 32, "a\\\\xff\\\\xc3"},
        {"a\xff", 6, "a"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[32];
        memset(text, '#', sizeof text);
        cr_assert_str_eq(metrics_escape(cases[i].value, text, cases[i].size), cases[i].escaped,
                         "case %zu", i);
        if (cases[i].size < sizeof text)
            cr_assert_eq(text[cases[i].size], '#', "case %zu wrote too far", i);
    }
}

Test(metrics, null_counts_nothing)
{
    metric_add(NULL, 1);
    metric_set(NULL, 1);
    metric_observe(NULL, 1);
    cr_assert_eq(metric_value(NULL), 0);
    cr_assert_null(metrics_get(NULL, METRIC_GAUGE, "g", "G.", ""));
    char *text = text_of(NULL);
    cr_assert_str_eq(text, "");
    free(text);
    metrics_free(NULL);
}

static void *count_a_lot(void *argument)
{
    struct metrics *metrics = argument;
    for (int i = 0; i < 20000; i++) {
        metric_add(metrics_get(metrics, METRIC_COUNTER, "c_total", "C.", ""), 1);
        metric_observe(metrics_get(metrics, METRIC_HISTOGRAM, "h", "H.", ""), 0.5);
    }
    return NULL;
}

Test(metrics, no_count_is_lost_between_threads)
{
    struct metrics *metrics = metrics_create();
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, count_a_lot, metrics), 0);
    for (int i = 0; i < 50; i++)
        free(text_of(metrics));
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        pthread_join(threads[i], NULL);
    char *text = text_of(metrics);
    cr_assert(strstr(text, "\nc_total 80000\n"), "%s", text);
    cr_assert(strstr(text, "\nh_count 80000\n"), "%s", text);
    cr_assert(strstr(text, "\nh_sum 40000\n"), "%s", text);
    free(text);
    metrics_free(metrics);
}

Test(metrics, promtool_finds_no_fault)
{
    if (system("command -v promtool >/dev/null 2>&1") != 0)
        cr_skip_test("promtool (Debian package prometheus) is not installed");
    struct metrics *metrics = metrics_create();
    metric_add(metrics_get(metrics, METRIC_COUNTER, "lensd_images_total", "Images answered.",
                           "model=\"a \\\"b\\\"\",result=\"ok\""),
               1);
    metric_observe(metrics_get(metrics, METRIC_HISTOGRAM, "lensd_phase_seconds",
                               "Seconds per phase.", "phase=\"decode\""),
                   0.003);
    metric_set(metrics_get(metrics, METRIC_GAUGE, "lensd_queue_images", "Waiting.", ""), 1);
    char *text = text_of(metrics);
    FILE *tool = popen("promtool check metrics", "w");
    cr_assert_not_null(tool);
    fputs(text, tool);
    cr_assert_eq(pclose(tool), 0, "promtool complains of:\n%s", text);
    free(text);
    metrics_free(metrics);
}
