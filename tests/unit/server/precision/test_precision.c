/* What --precision auto judges by. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/size.h"
#include "server/precision/internal.h"

/* Two images, because one alone proves nothing. */
static struct agreement of_vectors(bool probabilities, size_t count, const float *a, const float *b)
{
    struct agreement agreement = {.is_vector = true};
    for (int image = 0; image < 2; image++)
        agreement_add_vector(&agreement, a, b, count, probabilities);
    return agreement;
}

/* words "": the bounds hold. */
static void expect_bound(struct agreement a, const char *words)
{
    char text[AGREEMENT_TEXT];
    cr_expect_eq(agreement_holds(&a, text), !words[0], "%s", text);
    cr_expect(words[0] ? strstr(text, words) != NULL : !text[0], "'%s' in '%s'", words, text);
}

Test(agreement, names_the_bound_that_fails)
{
    const struct agreement good = {.is_vector = true,
                                   .has_numbers = true,
                                   .images = 5,
                                   .same = 5,
                                   .clear = 5,
                                   .agreeing = 5,
                                   .mean = 0.004,
                                   .correlation = 1};
    struct agreement a = good;
    expect_bound(a, "");
    a.mean = 0.02;
    expect_bound(a, "mean change of probability 0.0200");
    a.agreeing = 4;
    expect_bound(
        a, "the best class is the same for 4 of 5 photos in which fp32 has a clear best class "
           "(limit 99 %)");
    a = good;
    a.correlation = 0.99;
    expect_bound(a, "distance of the class scores 0.01000");
    a = good;
    a.mean = INFINITY;
    expect_bound(a, "no finite numbers");
    a = good;
    a.is_vector = false;
    a.mean = 0.03;
    expect_bound(a, "mean relative error 0.0300");
}

Test(agreement, of_one_image_proves_nothing)
{
    const float scores[] = {1, 2, 3};
    struct agreement a = {.is_vector = true};
    agreement_add_vector(&a, scores, scores, 3, false);
    expect_bound(a,
                 "mean change of probability 0.0000 (limit 0.005), but one image proves nothing");
    a.mean = 0.5;
    expect_bound(a, "mean change of probability 0.5000 (limit 0.005), but one image");
    a.mean = 0;
    agreement_add_vector(&a, scores, scores, 3, false);
    expect_bound(a, "");
}

Test(agreement, of_scores)
{
    static const struct {
        const char *name;
        float a[3], b[3];
        bool probabilities, is_clear, agrees, holds;
    } cases[] = {
        {"equal", {1, 2, 3}, {1, 2, 3}, false, true, true, true},
        {"near", {1, 2, 3}, {1.01f, 2, 3}, false, true, true, true},
        {"a probability 0.02 away", {0, 0, 3}, {0.25f, 0, 3}, false, true, true, false},
        {"another class", {0, 2, 2.2f}, {0, 2.2f, 2}, false, true, false, false},
        {"no clear class", {0, 9, 9.0001f}, {0, 9.0001f, 9}, false, false, false, true},
        {"no clear class and other scores",
         {0.001f, 0.002f, 0.003f},
         {0.003f, 0.002f, 0.001f},
         false,
         false,
         false,
         false},
        {"probabilities", {0.1f, 0.5f, 0.4f}, {0.1f, 0.505f, 0.395f}, true, true, true, true},
        {"probabilities too far",
         {0.1f, 0.5f, 0.4f},
         {0.1f, 0.52f, 0.38f},
         true,
         true,
         true,
         false},
        {"NaN", {1, 2, 3}, {1, 2, NAN}, false, false, false, false},
        {"NaN in both", {1, 2, NAN}, {1, 2, NAN}, false, false, false, false},
        {"infinite", {1, 2, 3}, {1, 2, INFINITY}, false, false, false, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct agreement a = of_vectors(cases[i].probabilities, 3, cases[i].a, cases[i].b);
        cr_expect_eq(agreement_holds(&a, NULL), cases[i].holds, "%s: %g, correlation %g",
                     cases[i].name, a.mean, a.correlation);
        cr_expect_eq(a.clear, cases[i].is_clear ? 2 : 0, "%s", cases[i].name);
        cr_expect_eq(a.agreeing, cases[i].agrees ? 2 : 0, "%s", cases[i].name);
    }
}

/* `other` of `clear` clear images have another class, each with a change of its probability of
 * `change`, beside `vague` images without a clear class. */
static struct agreement of_images(int clear, int other, int vague, float change)
{
    struct agreement a = {.is_vector = true};
    const float sure[] = {0.6f, 0.2f, 0.2f}, unsure[] = {0.34f, 0.33f, 0.33f};
    const float another[] = {0.2f, 0.6f, 0.2f};
    const float moved[] = {0.6f - change, 0.2f + change, 0.2f};
    for (int i = 0; i < clear; i++)
        agreement_add_vector(&a, sure, i < other ? another : moved, 3, true);
    for (int i = 0; i < vague; i++)
        agreement_add_vector(&a, unsure, (const float[]){0.33f, 0.34f, 0.33f}, 3, true);
    return a;
}

Test(agreement, asks_for_99_of_100_clear_classes_and_a_small_mean_change)
{
    struct agreement a = of_images(64, 0, 0, 0);
    cr_expect(agreement_holds(&a, NULL));
    a = of_images(64, 1, 0, 0);
    cr_expect_not(agreement_holds(&a, NULL), "one of 64 is more than one in a hundred");
    a = of_images(200, 2, 0, 0);
    cr_expect(agreement_holds(&a, NULL), "two of 200");
    a = of_images(200, 3, 0, 0);
    cr_expect_not(agreement_holds(&a, NULL), "three of 200");
    a = of_images(64, 0, 0, 0.009f);
    cr_expect(agreement_holds(&a, NULL));
    a = of_images(64, 0, 0, 0.011f);
    cr_expect_not(agreement_holds(&a, NULL));
    a = of_images(40, 0, 24, 0);
    cr_expect(agreement_holds(&a, NULL), "images without a clear class have no part in it");
    cr_expect_eq(a.clear, 40);
}

/* Classes of a few images prove little: then the scores as a whole have to be alike. */
Test(agreement, asks_for_the_correlation_where_few_are_clear)
{
    struct agreement a = of_images(AGREEMENT_FEW, 0, 40, 0);
    cr_expect_lt(a.correlation, 0.9);
    cr_expect(agreement_holds(&a, NULL));
    a = of_images(AGREEMENT_FEW - 1, 0, 40, 0);
    cr_expect_not(agreement_holds(&a, NULL));
}

/* The mean change of 15 images may be half of that of 16. */
Test(agreement, of_few_images_has_to_be_clearer)
{
    struct agreement a = of_images(AGREEMENT_FEW - 1, 0, 0, 0.006f);
    expect_bound(a, "mean change of probability 0.0060 (limit 0.005)");
    a = of_images(AGREEMENT_FEW, 0, 0, 0.006f);
    expect_bound(a, "");
    a = of_images(AGREEMENT_FEW - 1, 0, 0, 0.004f);
    expect_bound(a, "");
}

Test(agreement, of_a_single_score)
{
    float yes = 0.2f, no = -0.2f, near = 0.21f;
    const struct agreement same = of_vectors(false, 1, &yes, &near);
    const struct agreement other = of_vectors(false, 1, &yes, &no);
    cr_expect_eq(same.clear, 2);
    cr_expect(agreement_holds(&same, NULL), "%g", same.mean);
    cr_expect_not(agreement_holds(&other, NULL));
}

/* Of two images. */
static struct agreement of_tensor(struct agreement_tensor tensor, const float *a, const float *b)
{
    struct agreement agreement = {0};
    for (int image = 0; image < 2; image++)
        agreement_add_tensors(&agreement, &tensor, 1, a, b);
    return agreement;
}

Test(agreement, of_other_numbers_is_relative)
{
    const struct agreement_tensor three = {.count = 3, .channels = 1, .stride = 1};
    const float a[] = {100, -200, 0}, near[] = {101, -201, 1}, far[] = {100, -200, 9};
    const float zeros[3] = {0}, endless[] = {100, -200, INFINITY};
    struct agreement agreement = of_tensor(three, a, near);
    cr_expect(agreement_holds(&agreement, NULL), "%g", agreement.mean);
    agreement = of_tensor(three, a, far);
    cr_expect_not(agreement_holds(&agreement, NULL));
    agreement = of_tensor(three, zeros, zeros);
    cr_expect(agreement_holds(&agreement, NULL));
    agreement = of_tensor(three, zeros, near);
    cr_expect_not(agreement_holds(&agreement, NULL));
    agreement = of_tensor(three, a, endless);
    agreement_add_tensors(&agreement, &three, 1, a, a);
    cr_expect_not(agreement_holds(&agreement, NULL),
                  "an image that is equal does not make up for it");
    agreement = of_tensor((struct agreement_tensor){.channels = 1, .stride = 1}, a, a);
    cr_expect_not(agreement_holds(&agreement, NULL), "nothing was compared");
    agreement_add_tensors(&agreement, &three, 1, a, a);
    cr_expect(agreement_holds(&agreement, NULL), "an image without any box agrees");
}

/* An embedding and a regression, of which nothing says that they are class scores: another scale or
 * offset is another answer, though the numbers correlate. */
Test(agreement, of_vectors_that_are_no_scores_sees_their_scale)
{
    enum { WIDTH = 256, FEW = 10 };
    float a[WIDTH], near[WIDTH], scaled[WIDTH], moved[WIDTH];
    for (int i = 0; i < WIDTH; i++) {
        a[i] = sinf((float)i * 1.7f) / 16;
        near[i] = a[i] * (1 + 0.01f * cosf((float)i * 2.9f));
        scaled[i] = a[i] * 1.05f;
        moved[i] = a[i] + 0.003f;
    }
    for (size_t count = FEW; count <= WIDTH; count += WIDTH - FEW) {
        const struct agreement_tensor vector = {.count = count, .channels = 1, .stride = 1};
        struct agreement agreement = of_tensor(vector, a, near);
        cr_expect(agreement_holds(&agreement, NULL), "%zu: %g", count, agreement.mean);
        agreement = of_tensor(vector, a, scaled);
        cr_expect_not(agreement_holds(&agreement, NULL), "%zu: %g", count, agreement.mean);
        agreement = of_tensor(vector, a, moved);
        cr_expect_not(agreement_holds(&agreement, NULL), "%zu: %g", count, agreement.mean);
    }
}

/* Boxes in pixels do not hide scores below 1 in the same tensor, whichever way it lies. */
Test(agreement, measures_each_channel_by_its_own_scale)
{
    const float rows[] = {300, 310, 320, 330, 0.9f, 0.1f, 0.2f, 0.3f};
    const float rows_far[] = {300, 310, 320, 330, 0.1f, 0.9f, 0.2f, 0.3f};
    const float pairs[] = {300, 0.9f, 310, 0.1f, 320, 0.2f, 330, 0.3f};
    const float pairs_far[] = {300, 0.1f, 310, 0.9f, 320, 0.2f, 330, 0.3f};
    const struct agreement_tensor outer = {.count = 8, .channels = 2, .stride = 4};
    const struct agreement_tensor inner = {.count = 8, .channels = 2, .stride = 1};
    struct agreement a = of_tensor(outer, rows, rows_far);
    cr_expect_gt(a.mean, 0.5);
    struct agreement b = of_tensor(inner, pairs, pairs_far);
    cr_expect_float_eq(a.mean, b.mean, 1e-6);
    /* … and next to nothing, beside boxes, is nothing */
    const float quiet[] = {300, 310, 320, 330, 1e-5f, 2e-5f, 1e-5f, 2e-5f};
    const float quiet_too[] = {300, 310, 320, 330, 2e-5f, 1e-5f, 2e-5f, 1e-5f};
    a = of_tensor(outer, quiet, quiet_too);
    cr_expect(agreement_holds(&a, NULL), "%g", a.mean);
}

Test(agreement, of_maps_is_their_best_classes)
{
    /* Three classes at two positions; the second has no clear one. */
    const float map[] = {5, 2.001f, 1, 2, 0, 0}, tie_broken[] = {5, 2, 1, 2.001f, 0, 0};
    const float other[] = {2, 2.001f, 5, 2, 0, 0};
    const struct agreement_tensor t = {.count = 6, .channels = 3, .stride = 2, .is_map = true};
    struct agreement a = of_tensor(t, map, tie_broken);
    cr_expect_eq(a.clear, 2);
    cr_expect_eq(a.agreeing, 2);
    cr_expect(agreement_holds(&a, NULL));
    a = of_tensor(t, map, other);
    cr_expect_eq(a.agreeing, 0);
    cr_expect_not(agreement_holds(&a, NULL));
    /* A map whose best classes the model has picked itself. */
    const struct agreement_tensor labels = {
        .count = 6, .channels = 1, .stride = 1, .is_labels = true};
    const float picked[] = {0, 1, 1, 20, 3, 3}, one_off[] = {0, 1, 1, 20, 3, 4};
    a = of_tensor(labels, picked, picked);
    cr_expect(agreement_holds(&a, NULL));
    a = of_tensor(labels, picked, one_off);
    cr_expect_eq(a.agreeing, 10);
    cr_expect_not(agreement_holds(&a, NULL));
}

Test(outputs, know_where_channels_lie)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        struct shape shape;
        size_t channels, stride;
        bool is_map, is_labels;
    } cases[] = {
        {"[N, C, H, W]", DTYPE_F32, SHAPE(2, 21, 65, 60), 21, 65 * 60, true, false},
        {"[N, H, W, C]", DTYPE_F32, SHAPE(2, 65, 60, 21), 21, 1, true, false},
        {"many channels of a small map", DTYPE_F32, SHAPE(2, 255, 13, 13), 255, 169, true, false},
        {"a depth map", DTYPE_F32, SHAPE(2, 1, 64, 64), 1, 64 * 64, false, false},
        {"[N, boxes, numbers]", DTYPE_F32, SHAPE(2, 8400, 84), 84, 1, false, false},
        {"[N, numbers, boxes]", DTYPE_F32, SHAPE(2, 84, 8400), 84, 8400, false, false},
        {"numbers", DTYPE_F32, SHAPE(2, 40), 1, 1, false, false},
        {"picked classes", DTYPE_I64, SHAPE(2, 65, 60), 1, 1, false, true},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct tensor tensor = {.dtype = cases[i].dtype, .shape = cases[i].shape};
        const struct agreement_tensor t = outputs_layout(&tensor, 2);
        cr_expect_eq(t.count, shape_count(&tensor.shape) / 2, "%s", cases[i].name);
        cr_expect_eq(t.channels, cases[i].channels, "%s: %zu", cases[i].name, t.channels);
        cr_expect_eq(t.stride, cases[i].stride, "%s: %zu", cases[i].name, t.stride);
        cr_expect_eq(t.is_map, cases[i].is_map, "%s", cases[i].name);
        cr_expect_eq(t.is_labels, cases[i].is_labels, "%s", cases[i].name);
    }
}

/* ---- speeds, with times that are made up ---- */

struct pace {
    double ratio;   /* the candidate's true speed */
    double noise;   /* each time is up to so much longer, as a share */
    int slowed, of; /* so many of so many runs cost more, up to `by` times as much */
    double by;
    bool by_clock;    /* as on a GPU */
    bool counts_time; /* costs are milliseconds of the budget */
    uint32_t state;
    int rounds;
};

static double unit(struct pace *pace)
{
    pace->state = pace->state * 1664525u + 1013904223u;
    return (pace->state >> 8) * 0x1p-24;
}

static double cost_of(struct pace *pace, int side)
{
    const double work = 10 / (side ? pace->ratio : 1);
    double cost = work * (1 + pace->noise * unit(pace));
    if ((int)(unit(pace) * pace->of) < pace->slowed)
        cost += (pace->by - 1) * work * unit(pace);
    return cost;
}

/* Runs both sides until their speed is known. */
static double compare_speed(struct pace *pace, uint32_t seed)
{
    struct speed speed = {0};
    pace->state = seed;
    while (!speed_is_known(&speed, !pace->by_clock)) {
        const double fp32 = cost_of(pace, 0), candidate = cost_of(pace, 1);
        speed_add(&speed, fp32, candidate);
        speed.spent_ms += pace->counts_time ? fp32 + candidate : 0;
    }
    pace->rounds = speed.rounds;
    return speed_gain(&speed);
}

/* Where the gain is 1.1 or more, or none at all, a thousand starts come to one verdict, also where
 * each run costs up to 4 % more than it should, and other work slows one in three on a CPU, and
 * some on a GPU a lot. */
Test(speed, has_one_verdict_in_a_thousand_starts)
{
    static const struct pace cpu = {.noise = 0.04, .slowed = 1, .of = 3, .by = 1.8};
    static const struct pace gpu = {.noise = 0.04, .slowed = 1, .of = 5, .by = 4, .by_clock = true};
    static const struct {
        double ratio;
        bool pays;
    } cases[] = {{1.15, true}, {1.1, true}, {1.3, true}, {2.5, true}, {1, false}, {0.95, false}};
    for (size_t i = 0; i < 2 * COUNT_OF(cases); i++) {
        int paid = 0;
        for (uint32_t seed = 0; seed < 1000; seed++) {
            struct pace pace = i % 2 ? gpu : cpu;
            pace.ratio = cases[i / 2].ratio;
            paid += compare_speed(&pace, seed * 7919 + 1) >= PRECISION_GAIN;
        }
        cr_expect_eq(paid, cases[i / 2].pays ? 1000 : 0, "%g times as fast: chosen in %d of 1000",
                     cases[i / 2].ratio, paid);
    }
}

Test(speed, is_known_after_two_rounds_where_it_is_clear)
{
    struct pace fast = {.ratio = 2.5}, slow = {.ratio = 0.4}, near = {.ratio = 1.5},
                gpu = {.ratio = 2.5, .by_clock = true};
    cr_expect_float_eq(compare_speed(&fast, 1), 2.5, 1e-9);
    cr_expect_float_eq(compare_speed(&slow, 1), 0.4, 1e-9);
    (void)compare_speed(&near, 1);
    (void)compare_speed(&gpu, 1);
    cr_expect_eq(fast.rounds, 2);
    cr_expect_eq(slow.rounds, 2);
    cr_expect_eq(near.rounds, 10);
    cr_expect_eq(gpu.rounds, 10);
}

/* A round costs about 0.3 s: the sixth is over 1.5 s. */
Test(speed, is_known_when_the_runs_have_cost_too_much)
{
    struct pace slow = {.ratio = 1.0 / 29, .by_clock = true, .counts_time = true};
    (void)compare_speed(&slow, 1);
    cr_expect_eq(slow.rounds, 5);
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
                                               .from_folder = 17,
                                               .why = "bf16 is 2.10 times as fast as fp32"};

static const struct graph_hash key = {{1, 2}}, other_key = {{2, 1}};

Test(choice_cache, keeps_a_choice)
{
    struct precision_choice got = {.origin = CHOICE_ONLY};
    cr_assert_not(choice_find(&key, &got));
    choice_keep(&key, &chosen);
    cr_assert(choice_find(&key, &got));
    cr_expect_eq(got.origin, CHOICE_CACHED);
    cr_expect_eq(got.precision, PRECISION_BF16);
    cr_expect_eq(got.from_folder, 17);
    cr_expect_str_eq(got.why, chosen.why);
    cr_expect_eq(got.trial_count, 0);
    cr_expect_not(choice_find(&other_key, &got));
}

/* A choice was made on photos that were prepared in one way. */
Test(choice_cache, key_tells_paddings_apart)
{
    static const struct preprocess paddings[] = {{.pads_normalised = true}, {.pads_corner = true},
                                                 {.sides_floor = true},     {.pads_square = true},
                                                 {.pad_value = 1},          {.pad_value = 0}};
    const struct session_options options = {.device = DEVICE_HOST};
    struct graph graph = {0};
    struct graph_hash keys[COUNT_OF(paddings)];
    for (size_t i = 0; i < COUNT_OF(paddings); i++) {
        const struct model model = {.graph = &graph, .preprocess = paddings[i]};
        keys[i] = choice_key_of(&model, &options);
        for (size_t k = 0; k < i; k++)
            cr_expect(keys[i].words[0] != keys[k].words[0] || keys[i].words[1] != keys[k].words[1],
                      "%zu and %zu", i, k);
    }
}

Test(choice_cache, takes_nothing_else)
{
    static const char *const texts[] = {
        "",
        "\n",
        "precision bf16\n",
        "precision bf16\nfrom_folder 0\n",
        "precision bf16\nfrom_folder 0\nwhy ",
        "precision bf16\nfrom_folder 0\nwhy it is fast", /* half a line */
        "precision bf16\nfrom_folder 0\nwhy it is fast\nend\n",
        "precision auto\nfrom_folder 0\nwhy it is fast\n",
        "precision fp8\nfrom_folder 0\nwhy it is fast\n",
        "precision bf16\nfrom_folder -1\nwhy it is fast\n",
        "precision bf16\nfrom_folder 257\nwhy it is fast\n",
    };
    struct precision_choice got;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        tuning_keep(TUNING_PRECISION, &key, texts[i]);
        cr_expect_not(choice_find(&key, &got), "text %zu", i);
    }
    tuning_keep(TUNING_PRECISION, &key, "precision fp32\nfrom_folder 0\nwhy nothing is faster\n");
    cr_expect(choice_find(&key, &got));
}
