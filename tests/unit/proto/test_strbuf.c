/* Numbers as text: every float reads back, in as few digits as the C library finds. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/strbuf.h"

/* Digits between the first and the last that is not zero, both counted. */
static int digits_of(const char *text)
{
    char found[64];
    int count = 0;
    for (; *text && *text != 'e' && count < 60; text++)
        if (*text >= '0' && *text <= '9' && (count || *text != '0'))
            found[count++] = *text;
    while (count > 0 && found[count - 1] == '0')
        count--;
    return count;
}

static int fewest_digits(float value)
{
    char text[64];
    for (int precision = 6; precision <= 9; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return digits_of(text);
}

static void check(float value)
{
    char text[FLOAT_TEXT + 1], *end;
    memset(text, '#', sizeof text);
    size_t size = write_shortest(value, text);
    cr_assert(size > 0 && size <= FLOAT_MOST, "%a: %zu bytes", (double)value, size);
    text[size] = '\0';
    float back = strtof(text, &end);
    cr_assert(back == value && signbit(back) == signbit(value) && *end == '\0', "%a as %s",
              (double)value, text);
    cr_assert_eq(digits_of(text), fewest_digits(value), "%s for %.9g", text, (double)value);
    /* JSON: a digit before the point, one behind it, no zero before other digits. */
    const char *at = text + (*text == '-');
    cr_assert(*at >= '0' && *at <= '9' && !(*at == '0' && at[1] >= '0' && at[1] <= '9'), "%s",
              text);
    const char *point = strchr(text, '.');
    cr_assert(!point || (point[1] >= '0' && point[1] <= '9'), "%s", text);
}

static uint32_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

Test(text, floats_of_all_kinds)
{
    uint64_t state = 1;
    for (int i = 0; i < 300000; i++) {
        uint32_t bits = next(&state);
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value))
            check(value);
    }
}

Test(text, floats_as_models_make_them)
{
    uint64_t state = 2;
    for (int i = 0; i < 300000; i++) {
        float uniform = (float)next(&state) / 4294967296.0f;
        check(uniform);
        check((uniform - 0.5f) * 40);
        check(expf(-30 * uniform));
    }
}

Test(text, floats_at_the_edges)
{
    /* Powers of ten and of two, their neighbours, decimals that are short. */
    for (int e = -45; e <= 38; e++) {
        float ten = strtof((char[]){'1', 'e', e < 0 ? '-' : '+', (char)('0' + abs(e) / 10),
                                    (char)('0' + abs(e) % 10), 0},
                           NULL);
        for (int k = -3; k <= 3; k++) {
            float value = ten;
            for (int i = 0; i < abs(k); i++)
                value = nextafterf(value, k < 0 ? 0 : INFINITY);
            if (value > 0)
                check(-value);
        }
    }
    for (int e = -149; e <= 127; e++) {
        check(ldexpf(1, e));
        check(nextafterf(ldexpf(1, e), 0) > 0 ? nextafterf(ldexpf(1, e), 0) : 1);
    }
    for (int i = 1; i < 100000; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d.%03d", i / 1000, i % 1000);
        check(strtof(text, NULL));
    }
}

Test(text, forms)
{
    static const struct {
        float value;
        const char *text;
    } cases[] = {{0, "0"},
                 {-0.0f, "-0"},
                 {1, "1"},
                 {-1, "-1"},
                 {0.5f, "0.5"},
                 {-0.001f, "-0.001"},
                 {0.0001f, "0.0001"},
                 {1e-5f, "1e-05"},
                 {1.5e-7f, "1.5e-07"},
                 {123456.7f, "123456.7"},
                 {1e20f, "1e+20"},
                 {3.4e38f, "3.4e+38"},
                 {0.95712537f, "0.95712537"},
                 {NAN, "null"},
                 {INFINITY, "null"},
                 {16777216, "16777216"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf text = {0};
        strbuf_float(&text, cases[i].value);
        char *said = strbuf_finish(&text, NULL);
        cr_assert_str_eq(said, cases[i].text);
        free(said);
    }
}
