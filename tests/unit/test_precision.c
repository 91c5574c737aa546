/* What --precision auto judges by. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/size.h"
#include "server/precision/agreement.h"
#include "server/precision/internal.h"
#include "server/precision/pictures.h"

static struct precision_trial compare(bool is_classifier, bool probabilities, size_t count,
                                      const float *a, const float *b)
{
    struct precision_trial trial = {.is_classifier = is_classifier};
    agreement_add(&trial, a, b, count, probabilities);
    return trial;
}

Test(agreement, of_scores)
{
    static const struct {
        const char *name;
        float a[3], b[3];
        bool probabilities, holds;
        int undecided;
    } cases[] = {
        {"equal", {1, 2, 3}, {1, 2, 3}, false, true, 0},
        {"near", {1, 2, 3}, {1.01f, 2, 3}, false, true, 0},
        {"a probability 0.02 away", {0, 0, 3}, {0.25f, 0, 3}, false, false, 0},
        {"another class", {0, 2, 2.2f}, {0, 2.2f, 2}, false, false, 0},
        {"a tie", {0, 9, 9.0001f}, {0, 9.0001f, 9}, false, true, 1},
        {"a tie, but the rest is elsewhere", {0, 9, 9.0001f}, {4, 9.0001f, 9}, false, false, 0},
        {"probabilities as they are", {0.1f, 0.5f, 0.4f}, {0.1f, 0.505f, 0.395f}, true, true, 0},
        {"probabilities too far", {0.1f, 0.5f, 0.4f}, {0.1f, 0.52f, 0.38f}, true, false, 0},
        {"NaN", {1, 2, 3}, {1, 2, NAN}, false, false, 0},
        {"NaN in both", {1, 2, NAN}, {1, 2, NAN}, false, false, 0},
        {"infinite", {1, 2, 3}, {1, 2, INFINITY}, false, false, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct precision_trial trial =
            compare(true, cases[i].probabilities, 3, cases[i].a, cases[i].b);
        cr_expect_eq(agreement_holds(&trial), cases[i].holds, "%s: greatest %g", cases[i].name,
                     trial.greatest);
        cr_expect_eq(trial.undecided, cases[i].undecided, "%s", cases[i].name);
    }
}

Test(agreement, of_a_single_score)
{
    float yes = 0.2f, no = -0.2f, near = 0.21f;
    struct precision_trial same = compare(true, false, 1, &yes, &near);
    struct precision_trial other = compare(true, false, 1, &yes, &no);
    cr_expect(agreement_holds(&same), "greatest %g", same.greatest);
    cr_expect_not(agreement_holds(&other));
}

Test(agreement, of_other_numbers_is_relative)
{
    const float a[] = {100, -200, 0}, near[] = {101, -201, 1}, far[] = {100, -200, 9};
    const float zeros[3] = {0};
    struct precision_trial good = compare(false, false, 3, a, near);
    struct precision_trial bad = compare(false, false, 3, a, far);
    struct precision_trial none = compare(false, false, 3, zeros, zeros);
    struct precision_trial some = compare(false, false, 3, zeros, near);
    cr_expect(agreement_holds(&good), "greatest %g", good.greatest);
    cr_expect_not(agreement_holds(&bad));
    cr_expect(agreement_holds(&none));
    cr_expect_not(agreement_holds(&some));
}

Test(pictures, are_many_and_always_the_same)
{
    const size_t bytes = (size_t)PICTURE_SIDE * PICTURE_SIDE * 3;
    uint8_t *first = malloc(bytes), *again = malloc(bytes), *before = calloc(1, bytes);
    cr_assert(first && again && before);
    for (unsigned i = 0; i < PRECISION_PROBES; i++) {
        size_t levels = 0;
        bool seen[256] = {false};
        memset(first, 1, bytes);
        memset(again, 2, bytes);
        picture_draw(i, first);
        picture_draw(i, again);
        cr_expect_eq(memcmp(first, again, bytes), 0, "picture %u", i);
        cr_expect_neq(memcmp(first, before, bytes), 0, "picture %u is like the one before", i);
        for (size_t b = 0; b < bytes; b++) {
            levels += !seen[first[b]];
            seen[first[b]] = true;
        }
        cr_expect_geq(levels, 4, "picture %u has %zu levels", i, levels);
        memcpy(before, first, bytes);
    }
    free(first);
    free(again);
    free(before);
}

static const struct precision_choice chosen = {.precision = PRECISION_BF16,
                                               .origin = CHOICE_MEASURED,
                                               .trial_count = 1,
                                               .trials = {{.precision = PRECISION_BF16,
                                                           .outcome = TRIAL_PASSED,
                                                           .one_ms = 2,
                                                           .image_ms = 1.5,
                                                           .fp32_one_ms = 4,
                                                           .fp32_image_ms = 3.25,
                                                           .speed = 2.1,
                                                           .is_classifier = true,
                                                           .images = 64,
                                                           .agreeing = 63,
                                                           .undecided = 1,
                                                           .greatest = 0.0042}}};

Test(trial, names_of_layers_end_with_how_many_are_left_out)
{
    char text[64], long_name[100];
    struct session_step steps[9] = {{.name = "a product that is no layer"}};
    struct layer_set layers = {{0}};
    for (int i = 1; i < 9; i++) {
        steps[i] = (struct session_step){.name = "/stem/Conv", .layer = i};
        if (i != 2)
            layer_set_add(&layers, i);
    }
    trial_name_layers(steps, 2, &layers, text, sizeof text);
    cr_expect_str_eq(text, "/stem/Conv");
    trial_name_layers(steps, 6, &layers, text, sizeof text); /* 46 bytes and the end */
    cr_expect_str_eq(text, "/stem/Conv, /stem/Conv, /stem/Conv, /stem/Conv");
    trial_name_layers(steps, 9, &layers, text, sizeof text);
    cr_expect_str_eq(text, "/stem/Conv, /stem/Conv, /stem/Conv … and 4 more");
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    steps[1].name = long_name;
    trial_name_layers(steps, 4, &layers, text, sizeof text);
    cr_expect_str_eq(text, "2 with long names");
    trial_name_layers(steps, 1, &layers, text, sizeof text);
    cr_expect_str_eq(text, "");
}

Test(choice_cache, keeps_a_choice)
{
    char folder[] = "/tmp/lensd-choice-XXXXXX", deep[64];
    struct choice_key key = {"00112233445566778899aabbccddeeff"}, other = {"0"};
    struct precision_choice got = {.origin = CHOICE_ONLY};
    struct error err = {0};
    cr_assert_not_null(mkdtemp(folder));
    snprintf(deep, sizeof deep, "%s/a/b", folder);
    cr_assert_not(choice_load(deep, &key, &got));
    cr_assert_eq(choice_save(deep, &key, &chosen, &err), STATUS_OK, "%s", err.message);
    cr_assert(choice_load(deep, &key, &got));
    cr_expect_eq(got.origin, CHOICE_CACHED);
    cr_expect_eq(got.precision, PRECISION_BF16);
    cr_expect_eq(got.trials[0].undecided, 1);
    cr_expect_float_eq((float)got.trials[0].greatest, 0.0042f, 1e-7f);
    cr_expect_float_eq((float)got.trials[0].fp32_image_ms, 3.25f, 1e-6f);
    cr_expect_not(choice_load(deep, &other, &got));
}

Test(choice_cache, keeps_layers)
{
    char folder[] = "/tmp/lensd-choice-XXXXXX";
    struct choice_key key = {"00112233445566778899aabbccddeeff"};
    struct precision_choice mixed = chosen, got;
    struct error err = {0};
    mixed.trial_count = 2; /* the one as a whole differed */
    mixed.trials[1] = mixed.trials[0];
    mixed.trials[0].outcome = TRIAL_DIFFERS;
    mixed.trials[1].layer_count = 300;
    layer_set_add(&mixed.trials[1].fp32_layers, 1);
    layer_set_add(&mixed.trials[1].fp32_layers, 299);
    snprintf(mixed.trials[1].layer_names, sizeof mixed.trials[1].layer_names, "Conv_0, a: b");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(choice_save(folder, &key, &mixed, &err), STATUS_OK, "%s", err.message);
    cr_assert(choice_load(folder, &key, &got));
    cr_assert_eq(got.trial_count, 2);
    cr_expect_eq(layer_set_count(&got.trials[0].fp32_layers), 0);
    cr_expect_eq(got.trials[1].layer_count, 300);
    cr_expect_str_eq(got.trials[1].layer_names, "Conv_0, a: b");
    cr_expect_eq(
        memcmp(&got.trials[1].fp32_layers, &mixed.trials[1].fp32_layers, sizeof(struct layer_set)),
        0);
    struct session_options session = {.precision = PRECISION_AUTO};
    precision_apply(&got, &session);
    cr_expect_eq(session.precision, PRECISION_BF16);
    cr_expect(layer_set_has(&session.fp32_layers, 299));
    cr_expect_eq(layer_set_count(&session.fp32_layers), 2);
}

Test(choice_cache, takes_nothing_else)
{
    static const char *const texts[] = {
        "",
        "lensd precision 2\n",
        "lensd precision 2\nprecision bf16\nend\n", /* no trial that passed */
        "lensd precision 2\nprecision fp32\n",      /* no end */
        "lensd precision 1\nprecision fp32\nend\n",
        "lensd precision 2\nprecision auto\nend\n",
        "lensd precision 2\nprecision bf16\nfrom_folder 0\n"
        "trial bf16 slower 1 1 1 1 0.5 1 64 64 0 0\nend\n",
        "lensd precision 2\nprecision bf16\nfrom_folder 0\n"
        "trial bf16 passed 1 1 1 1 nan 1 64 64 0 0\nend\n",
        "lensd precision 2\nprecision bf16\nfrom_folder 0\n"
        "trial bf16 passed 1 1 1 1 2 1 64 64 0 0 more\nend\n",
        "lensd precision 2\nprecision fp32\nlayers 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0: a\nend\n",
        "lensd precision 2\nprecision bf16\nfrom_folder 0\n"
        "trial bf16 passed 1 1 1 1 2 1 64 64 0 0\nlayers 1 2 0 0: a\nend\n",
        "lensd precision 2\nprecision bf16\nfrom_folder 0\n"
        "trial bf16 passed 1 1 1 1 2 1 64 64 0 0\n"
        "layers 1 6 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0: two of one\nend\n",
        "lensd precision 2\nprecision fp32\nfrom_folder 0\n"
        "trial bf16 slower 1 1 1 1 1 1 1 1 0 0\ntrial bf16 slower 1 1 1 1 1 1 1 1 0 0\n"
        "trial bf16 slower 1 1 1 1 1 1 1 1 0 0\ntrial bf16 slower 1 1 1 1 1 1 1 1 0 0\n"
        "trial bf16 slower 1 1 1 1 1 1 1 1 0 0\nend\n",
    };
    char folder[] = "/tmp/lensd-choice-XXXXXX", path[128];
    struct choice_key key = {"00112233445566778899aabbccddeeff"};
    struct precision_choice got;
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/precision-%s", folder, key.text);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        FILE *file = fopen(path, "wb");
        cr_assert_not_null(file);
        fputs(texts[i], file);
        cr_assert_eq(fclose(file), 0);
        cr_expect_not(choice_load(folder, &key, &got), "text %zu", i);
    }
}

Test(choice_cache, keeps_times)
{
    char folder[] = "/tmp/lensd-choice-XXXXXX";
    const struct facts_key key = {"00112233445566778899aabbccddeeff"}, none = {""};
    struct session_facts facts = {true, 2, {{1, 3.5}, {8, 21.25}}}, got = {0};
    cr_assert_not_null(mkdtemp(folder));
    cr_expect_not(facts_load(folder, &key, &got));
    precision_keep_facts(&key, folder, &facts);
    cr_assert(facts_load(folder, &key, &got));
    cr_expect(got.rows_checked);
    cr_assert_eq(got.count, 2);
    cr_expect_eq(got.times[1].size, 8);
    cr_expect_float_eq((float)got.times[1].milliseconds, 21.25f, 1e-4f);
    facts.times[0].milliseconds = 6; /* no news: slower */
    precision_keep_facts(&key, folder, &facts);
    cr_assert(facts_load(folder, &key, &got));
    cr_expect_float_eq((float)got.times[0].milliseconds, 3.5f, 1e-4f);
    facts.times[0].milliseconds = 9; /* 3.5 was not believed */
    precision_keep_facts(&key, folder, &facts);
    cr_assert(facts_load(folder, &key, &got));
    cr_expect_float_eq((float)got.times[0].milliseconds, 9, 1e-4f);
    facts.times[0].milliseconds = 3.5;
    precision_keep_facts(&key, folder, &facts);
    facts.times[1].milliseconds = 0; /* nothing was measured */
    facts.times[0].milliseconds = 1;
    precision_keep_facts(&key, folder, &facts);
    precision_keep_facts(&none, folder, &facts);
    cr_assert(facts_load(folder, &key, &got));
    cr_expect_float_eq((float)got.times[0].milliseconds, 3.5f, 1e-4f);
}

Test(choice_cache, takes_no_other_times)
{
#define FOUR_SIZES "1 1 0 0\n1 1 0 0\n1 1 0 0\n1 1 0 0\n"
#define SEVENTEEN_SIZES                                                                            \
    "lensd times 2\nrows_checked 1\n" FOUR_SIZES FOUR_SIZES FOUR_SIZES FOUR_SIZES "1 1 0 0\nend\n"
    static const char *const texts[] = {
        "",
        "lensd times 2",
        "lensd times 2\nrows_checked 1\nend\n",
        "lensd times 2\nrows_checked 2\n1 3 0 0\nend\n",
        "lensd times 1\nrows_checked 1\n1 3 0 0\nend\n",
        "lensd times 2\nrows_checked 1\n1 3 0 0\n",
        "lensd times 2\nrows_checked 1\n0 3 0 0\nend\n",
        "lensd times 2\nrows_checked 1\n1 nan 0 0\nend\n",
        "lensd times 2\nrows_checked 1\n1 -3 0 0\nend\n",
        "lensd times 2\nrows_checked 1\n1 3\nend\n",
        "lensd times 2\nrows_checked 1\n1 3 0 0 4\nend\n",
        "lensd times 2\nrows_checked 1\n4 3 4 9\nend\n", /* a front of all images */
        "lensd times 2\nrows_checked 1\n4 3 -1 9\nend\n",
        "lensd times 2\nrows_checked 1\n4 3 2 0\nend\n", /* … of no steps */
        "lensd times 2\nrows_checked 1\n4 3 0 9\nend\n",
        SEVENTEEN_SIZES,
    };
    char folder[] = "/tmp/lensd-choice-XXXXXX", path[128];
    const struct facts_key key = {"00112233445566778899aabbccddeeff"};
    struct session_facts got;
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/times-%s", folder, key.text);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        FILE *file = fopen(path, "wb");
        cr_assert_not_null(file);
        fputs(texts[i], file);
        cr_assert_eq(fclose(file), 0);
        cr_expect_not(facts_load(folder, &key, &got), "text %zu", i);
    }
}

/* Each start may meet anything under the names of its files, and waits for nobody. */
Test(choice_cache, reads_nothing_but_files, .timeout = 20)
{
    char folder[] = "/tmp/lensd-choice-XXXXXX", path[128];
    const char key[] = "00112233445566778899aabbccddeeff";
    struct facts_key facts_key;
    struct choice_key choice_key;
    struct session_facts facts = {true, 1, {{1, 3.5}}}, got;
    struct precision_choice choice;
    memcpy(facts_key.text, key, sizeof key);
    memcpy(choice_key.text, key, sizeof key);
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/times-%s", folder, key);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_not(facts_load(folder, &facts_key, &got));
    precision_keep_facts(&facts_key, folder, &facts); /* takes its place */
    cr_expect(facts_load(folder, &facts_key, &got));
    snprintf(path, sizeof path, "%s/precision-%s", folder, key);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_not(choice_load(folder, &choice_key, &choice));
    snprintf(path, sizeof path, "%s/kernels-%s", folder, choice_key_of_machine().text);
    cr_assert_eq(mkfifo(path, 0600), 0);
    kernels_recall(folder);
    cr_expect_null(choice_read(path, 100));
    cr_expect_null(choice_read(folder, 100));
    cr_expect_null(choice_read("/dev/zero", 100));
    snprintf(path, sizeof path, "%s/text", folder);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    fputs("words", file);
    cr_assert_eq(fclose(file), 0);
    cr_expect_null(choice_read(path, 4));
    char *text = choice_read(path, 5);
    cr_expect_str_eq(text ? text : "", "words");
    free(text);
}

Test(choice_cache, folder_of_the_user)
{
    setenv("XDG_CACHE_HOME", "/somewhere", 1);
    setenv("HOME", "/home/me", 1);
    char *folder = choice_folder(NULL);
    cr_expect_str_eq(folder, "/somewhere/lensd");
    free(folder);
    setenv("XDG_CACHE_HOME", "relative", 1);
    folder = choice_folder(NULL);
    cr_expect_str_eq(folder, "/home/me/.cache/lensd");
    free(folder);
    unsetenv("HOME");
    cr_expect_null(choice_folder(NULL));
    cr_expect_null(choice_folder("none"));
    folder = choice_folder("here");
    cr_expect_str_eq(folder, "here");
    free(folder);
}
