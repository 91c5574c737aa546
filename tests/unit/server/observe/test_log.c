/* Log lines: both forms, escapes, cuts, and that a line is one write. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "server/observe/log.h"
#include "server/observe/log_sample.h"

/* 2026-11-21T12:03:04.512Z */
static const struct timespec moment = {.tv_sec = 1795262584, .tv_nsec = 512345678};

static const char *format_for(bool journal, bool json, enum log_level level,
                              const struct log_field *fields)
{
    static char line[LOG_LINE_MAX + 1];
    setenv("TZ", "UTC", 1);
    size_t size = log_format(json, journal, &moment, level, fields, line);
    cr_assert_leq(size, LOG_LINE_MAX);
    line[size] = '\0';
    cr_assert_eq(line[size - 1], '\n', "a line ends in a newline: %s", line);
    cr_assert_eq(strlen(line), size);
    return line;
}

static const char *format(bool json, enum log_level level, const struct log_field *fields)
{
    return format_for(false, json, level, fields);
}

#define FIELDS(...) ((const struct log_field[]){LOG_STR("event", "ready"), __VA_ARGS__, {NULL}})

Test(log, text_form)
{
    const char *line =
        format(false, LOG_INFO,
               FIELDS(LOG_STR("model", "digits"), LOG_INT("threads", 2), LOG_REAL("load_ms", 12.5),
                      LOG_BOOL("batched", true), LOG_STR("note", "two words"), LOG_STR("empty", ""),
                      LOG_STR("missing", NULL)));
    cr_assert_str_eq(
        line, "2026-11-21T12:03:04.512+00:00 info  ready model=digits threads=2 load_ms=12.5 "
              "batched=true note=\"two words\" empty=\"\" missing=-\n");
}

Test(log, json_form)
{
    const char *line =
        format(true, LOG_ERROR,
               FIELDS(LOG_STR("model", "digits"), LOG_INT("threads", -2), LOG_REAL("ms", 0.25),
                      LOG_BOOL("ok", false), LOG_STR("missing", NULL)));
    cr_assert_str_eq(line, "{\"time\":\"2026-11-21T12:03:04.512Z\",\"level\":\"error\","
                           "\"event\":\"ready\",\"model\":\"digits\",\"threads\":-2,\"ms\":0.25,"
                           "\"ok\":false,\"missing\":null}\n");
}

Test(log, the_journal_gets_priorities_and_stamps_text_itself)
{
    const struct log_field *fields = FIELDS(LOG_INT("n", 2));
    cr_assert_str_eq(format_for(true, false, LOG_DEBUG, fields), "<7>debug ready n=2\n");
    cr_assert_str_eq(format_for(true, false, LOG_INFO, fields), "<6>info  ready n=2\n");
    cr_assert_str_eq(format_for(true, false, LOG_WARN, fields), "<4>warn  ready n=2\n");
    cr_assert_str_eq(format_for(true, false, LOG_ERROR, fields), "<3>error ready n=2\n");
    cr_assert_str_eq(format_for(true, true, LOG_WARN, fields),
                     "<4>{\"time\":\"2026-11-21T12:03:04.512Z\",\"level\":\"warn\","
                     "\"event\":\"ready\",\"n\":2}\n");
}

Test(log, values_cannot_forge_lines_or_escape_sequences)
{
    static const struct {
        const char *name, *value, *escaped;
    } cases[] = {
        {"newline", "a\nb", "\"a\\nb\""},
        {"quote and backslash", "a\"b\\c", "\"a\\\"b\\\\c\""},
        {"escape", "\x1b[31mred", "\"\\u001b[31mred\""},
        {"delete", "a\x7f", "\"a\\u007f\""},
        {"one-character CSI", "\xc2\x9b", "\"\\u009b\""},
        {"line separator", "\xe2\x80\xa8", "\"\\u2028\""},
        {"UTF-8 stays", "Käfer 🐞", "\"Käfer 🐞\""},
        {"lone continuation", "a\x80", "\"a\xEF\xBF\xBD\""},
        {"cut character", "a\xe2\x80", "\"a\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"overlong slash", "\xc0\xaf", "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"surrogate", "\xed\xa0\x80", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"direction of text", "\xe2\x80\xaegpj.exe\xe2\x81\xa9", "\"\\u202egpj.exe\\u2069\""},
        {"a mark of direction", "\xe2\x80\x8f \xd8\x9c", "\"\\u200f \\u061c\""},
        {"a pair in a value", "x model=evil", "\"x model=evil\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char expected[256];
        snprintf(expected, sizeof expected, " ready v=%s\n", cases[i].escaped);
        const char *line = format(false, LOG_INFO, FIELDS(LOG_STR("v", cases[i].value)));
        cr_assert_str_eq(strstr(line, " ready"), expected, "%s: %s", cases[i].name, line);
        snprintf(expected, sizeof expected, ",\"v\":%s}\n", cases[i].escaped);
        line = format(true, LOG_INFO, FIELDS(LOG_STR("v", cases[i].value)));
        cr_assert_str_eq(strstr(line, ",\"v\""), expected, "%s: %s", cases[i].name, line);
    }
}

Test(log, numbers_that_json_does_not_have)
{
    volatile double zero = 0;
    const struct log_field *fields = FIELDS(LOG_REAL("a", 1 / zero), LOG_REAL("b", zero / zero));
    cr_assert_str_eq(strstr(format(true, LOG_INFO, fields), ",\"a\""), ",\"a\":null,\"b\":null}\n");
    cr_assert(strstr(format(false, LOG_INFO, fields), " a=inf b="));
}

Test(log, a_long_value_is_cut_at_a_character)
{
    char value[3000];
    for (size_t i = 0; i + 2 < sizeof value; i += 2)
        memcpy(value + i, "ä", 3);
    const char *line = format(true, LOG_INFO, FIELDS(LOG_STR("v", value), LOG_INT("n", 1)));
    const char *start = strstr(line, "\"v\":\"") + 5, *end = strstr(start, "\"");
    cr_assert_eq(end - start, 1024 + 3); /* 512 whole characters and "…" */
    cr_assert_str_eq(end, "\",\"n\":1}\n");
}

Test(log, fields_beyond_the_line_are_left_out_and_said)
{
    char value[980];
    memset(value, 'x', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    for (int json = 0; json < 2; json++) {
        const char *line =
            format(json, LOG_INFO,
                   FIELDS(LOG_STR("a", value), LOG_STR("b", value), LOG_STR("c", value),
                          LOG_STR("d", value), LOG_STR("e", value), LOG_INT("small", 7)));
        cr_assert(strstr(line, json ? ",\"d\":\"" : " d=xxx"));
        cr_assert_null(strstr(line, json ? "\"e\":" : " e="));
        const char *end = strstr(line, json ? ",\"small\"" : " small");
        cr_assert_str_eq(end, json ? ",\"small\":7,\"cut\":true}\n" : " small=7 cut=true\n");
    }
}

Test(log, lowest_level_and_one_write_to_standard_error)
{
    /* A packet pipe keeps each write apart from the next. */
    int ends[2];
    cr_assert_eq(pipe2(ends, O_DIRECT | O_NONBLOCK), 0);
    int kept = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    log_as_json = true;
    log_lowest = LOG_WARN;
    log_event(LOG_INFO, "quiet", LOG_INT("n", 1));
    log_event(LOG_WARN, "loud", LOG_INT("n", 2));
    log_event(LOG_ERROR, "louder");
    dup2(kept, STDERR_FILENO);

    char packet[LOG_LINE_MAX + 1];
    ssize_t size = read(ends[0], packet, sizeof packet - 1);
    cr_assert_gt(size, 0);
    packet[size] = '\0';
    cr_assert_str_eq(strstr(packet, "\"level\""),
                     "\"level\":\"warn\",\"event\":\"loud\",\"n\":2}\n");
    size = read(ends[0], packet, sizeof packet - 1);
    cr_assert_gt(size, 0);
    packet[size] = '\0';
    cr_assert_str_eq(strstr(packet, "\"level\""), "\"level\":\"error\",\"event\":\"louder\"}\n");
    cr_assert_lt(read(ends[0], packet, sizeof packet), 0, "a third line appeared");
}

Test(log_sample, the_first_of_each_second_are_written_the_others_counted)
{
    const int64_t ms = 1000000, start = 5000 * ms;
    struct log_sample sample = {0};
    for (int i = 0; i < 3 * LOG_SAMPLE_LINES; i++) {
        cr_assert_eq(log_sample_left_out(&sample, start + i * ms), 0);
        cr_assert_eq(log_sample_take(&sample, start + i * ms), i < LOG_SAMPLE_LINES);
    }
    cr_assert_eq(log_sample_left_out(&sample, start + 999 * ms), 0);
    cr_assert_eq(log_sample_left_out(&sample, start + 1000 * ms), 2 * LOG_SAMPLE_LINES);
    cr_assert_eq(log_sample_left_out(&sample, start + 1000 * ms), 0);
    cr_assert(log_sample_take(&sample, start + 1000 * ms));
    cr_assert_eq(log_sample_left_out(&sample, start + 9000 * ms), 0, "none was left out");
}
