/* Which layers stay in fp32 so that the rest may be bfloat16.
 *
 * Small errors of layers add up in the outputs. So each group of layers is run in bfloat16 alone,
 * on the probes that bfloat16 as a whole does worst on, and what its outputs differ by is kept: the
 * outputs of any selection of groups are then foretold by a sum. Groups go back to fp32 in the
 * order of what they mend for the time they cost until the forecast holds with room to spare; then
 * the selection is tried like any other candidate, on all probes and within the same bounds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/precision/agreement.h"
#include "server/precision/internal.h"

enum {
    HARD = 8, /* probes */
    MOST_GROUPS = 48,
    FEWEST_GROUPS = 4,
    MOST_NUMBERS = 16384, /* of an image, where the outputs are no class scores */
    MOST_ATTEMPTS = 4,
};

/* For measuring groups; trials of selections come on top. */
#define SEARCH_MS    3000.0
#define UNBOUNDED_MS 60000.0 /* where nobody waits: trial_input.end is 0 */

/* What is foretold not to be this much quicker than fp32 is not tried. */
#define GAIN 1.03

/* Nor is anything searched where all layers that gain together gain no more than this: mending
 * takes a part of it. */
#define WORTH_A_SEARCH 1.1

/* Of the time left for trials, as much goes into groups; the rest is for trials of selections. */
#define SEARCH_SHARE 0.6

/* A sample of a quarter of the layers that is this many times outside the bounds: there is nothing
 * to be had. */
#define HOPELESS 4.0

/* Forecasts are that much too low at times: errors do not quite add up, and other probes count. */
#define MARGIN 1.25

struct group {
    struct layer_set layers;
    double saved_ms; /* an image */
    float *shift;    /* [hard_count, numbers]: outputs with this group in bfloat16, less fp32's */
    bool usable;     /* it was measured, and its outputs are finite */
    bool is_fp32;
};

struct search {
    const struct trial_input *input;
    const struct survey *survey;
    struct outputs outputs;
    float *image, *whole; /* a probe; all outputs of an image */
    size_t each, step, numbers;
    int hard[HARD];
    size_t hard_count;
    float *reference, *sum, *forecast; /* [hard_count, numbers] twice, [numbers] */
    int layers[LAYERS_MAX];            /* that bfloat16 gains by */
    size_t layer_count;
    struct group groups[MOST_GROUPS];
    size_t group_count;
    int64_t end;
};

static bool out_of_time(const struct search *s)
{
    return clock_now() > s->end;
}

/* ---- preparation ---- */

static bool is_hard(const struct search *s, size_t count, int probe)
{
    for (size_t h = 0; h < count; h++)
        if (s->hard[h] == probe)
            return true;
    return false;
}

/* Puts the `most` probes that fared worst, the worst first, in front of the hard ones that there
 * are; the last of those fall out. */
static void find_hard(struct search *s, const double *excess, size_t most)
{
    int old[HARD];
    const size_t old_count = s->hard_count;
    const int probes = probes_count(s->input->probes);
    memcpy(old, s->hard, sizeof old);
    for (s->hard_count = 0; s->hard_count < most; s->hard_count++) {
        int worst = -1;
        for (int i = 0; i < probes; i++)
            if (excess[i] > (worst < 0 ? 0 : excess[worst]) && !is_hard(s, s->hard_count, i))
                worst = i;
        if (worst < 0)
            break;
        s->hard[s->hard_count] = worst;
    }
    for (size_t h = 0; h < old_count && s->hard_count < HARD; h++)
        if (!is_hard(s, s->hard_count, old[h]))
            s->hard[s->hard_count++] = old[h];
}

/* Output `h` of the session's last run, or as many of its numbers as are looked at. */
static void read_numbers(struct search *s, float *dst)
{
    outputs_read(&s->outputs, 1, s->whole);
    for (size_t k = 0; k < s->numbers; k++)
        dst[k] = s->whole[k * s->step];
}

static enum status run_hard(struct search *s, struct session *session, size_t h, struct error *err)
{
    struct run_time ignored;
    TRY(probes_write(s->input->probes, s->hard[h], s->image, err));
    TRY(outputs_run(&s->outputs, session, s->image, 1, &ignored, err));
    trial_note(s->input, 1);
    return STATUS_OK;
}

static enum status make_room(struct search *s, struct error *err)
{
    s->each = outputs_each(&s->outputs, 1);
    s->step = s->outputs.is_classifier ? 1 : (s->each + MOST_NUMBERS - 1) / MOST_NUMBERS;
    s->step = s->step ? s->step : 1;
    s->numbers = s->each / s->step;
    s->whole = alloc_array(s->each, sizeof(float));
    s->forecast = alloc_array(s->numbers, sizeof(float));
    s->reference = alloc_array(s->numbers, HARD * sizeof(float));
    s->sum = alloc_array(s->numbers, HARD * sizeof(float));
    if (!s->whole || !s->forecast || !s->reference || !s->sum)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    return STATUS_OK;
}

/* What fp32 says to the hard probes. */
static enum status run_reference(struct search *s, struct error *err)
{
    for (size_t h = 0; h < s->hard_count; h++) {
        TRY(run_hard(s, s->input->reference, h, err));
        if (!s->whole)
            TRY(make_room(s, err));
        if (outputs_each(&s->outputs, 1) != s->each)
            return error_set(err, STATUS_SHAPE, "the outputs change their sizes");
        read_numbers(s, s->reference + h * s->numbers);
    }
    return STATUS_OK;
}

static enum status prepare(struct search *s, struct error *err)
{
    struct session *reference = s->input->reference;
    const size_t floats = shape_count(&session_input(reference, 0)->shape);
    find_hard(s, s->survey->excess, HARD);
    s->image = alloc_array(floats, (size_t)session_batch_for(reference, 1) * sizeof(float));
    if (!s->image)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    TRY(outputs_init(&s->outputs, s->input->model, reference, err));
    TRY(run_reference(s, err));
    for (int layer = 1; layer <= s->survey->layer_count; layer++)
        if (s->survey->saved_ms[layer] > 0)
            s->layers[s->layer_count++] = layer;
    return STATUS_OK;
}

static void search_done(struct search *s)
{
    for (size_t g = 0; g < s->group_count; g++)
        free(s->groups[g].shift);
    outputs_done(&s->outputs);
    free(s->image);
    free(s->whole);
    free(s->reference);
    free(s->sum);
    free(s->forecast);
}

/* ---- errors of groups ---- */

static struct layer_set all_but(const struct search *s, const struct layer_set *layers)
{
    struct layer_set rest = {{0}};
    for (int layer = 1; layer <= s->survey->layer_count; layer++)
        if (!layer_set_has(layers, layer))
            layer_set_add(&rest, layer);
    return rest;
}

/* What the outputs differ by with these layers in bfloat16 and all others in fp32. */
static enum status measure_shift(struct search *s, const struct layer_set *layers, float *shift,
                                 struct error *err)
{
    const struct layer_set fp32 = all_but(s, layers);
    struct session_options options = trial_options(s->input, PRECISION_BF16, &fp32);
    struct session *session;
    if (options.cancel && *options.cancel)
        return error_set(err, STATUS_CANCELLED, "loading was cancelled");
    options.max_batch = 1;
    TRY(session_create(s->input->model->graph, &options, &session, err));
    enum status status = STATUS_OK;
    for (size_t h = 0; h < s->hard_count && status == STATUS_OK; h++) {
        status = run_hard(s, session, h, err);
        if (status == STATUS_OK && outputs_each(&s->outputs, 1) != s->each)
            status = error_set(err, STATUS_SHAPE, "the outputs have other sizes than in fp32");
        if (status != STATUS_OK)
            break;
        float *row = shift + h * s->numbers;
        const float *reference = s->reference + h * s->numbers;
        read_numbers(s, row);
        for (size_t k = 0; k < s->numbers; k++)
            row[k] -= reference[k];
    }
    session_free(session);
    return status;
}

/* How far the worst probe is outside the bounds (1: just within) with outputs that differ by sum -
 * without, `amplify` times, and MARGIN taken off the bound; `ret_energy`: all of them, for
 * comparing. */
static double foretell(struct search *s, const float *sum, const float *without, double amplify,
                       double *ret_energy)
{
    double worst = 0, energy = 0;
    for (size_t h = 0; h < s->hard_count; h++) {
        const size_t at = h * s->numbers;
        for (size_t k = 0; k < s->numbers; k++) {
            const double shift = (double)sum[at + k] - (without ? (double)without[at + k] : 0);
            s->forecast[k] = (float)((double)s->reference[at + k] + amplify * shift);
        }
        struct precision_trial one = {.is_classifier = s->outputs.is_classifier};
        agreement_add(&one, s->reference + at, s->forecast, s->numbers,
                      s->input->model->has_probabilities);
        one.greatest *= MARGIN;
        const double excess = agreement_excess(&one);
        worst = fmax(worst, excess);
        energy += excess * excess;
    }
    *ret_energy = energy;
    return worst;
}

/* Two samples of a quarter of the layers, far outside the bounds both: more of them is worse. */
static enum status look_for_hope(struct search *s, bool *ret, struct error *err)
{
    *ret = s->layer_count < 2 * (size_t)FEWEST_GROUPS;
    for (size_t first = 0; first <= 2 && !*ret; first += 2) {
        struct layer_set sample = {{0}};
        double ignored;
        for (size_t i = first; i < s->layer_count; i += 4)
            layer_set_add(&sample, s->layers[i]);
        TRY(measure_shift(s, &sample, s->sum, err));
        *ret = foretell(s, s->sum, NULL, 1, &ignored) < HOPELESS;
    }
    return STATUS_OK;
}

/* Neighbours together, as many groups as there is time for. */
static void form_groups(struct search *s, double ms_of_a_group)
{
    const double left = clock_ms(s->end - clock_now());
    size_t count = ms_of_a_group > 0
                       ? (size_t)fmin(0.9 * fmax(left, 0) / ms_of_a_group, MOST_GROUPS)
                       : (size_t)MOST_GROUPS;
    if (count < FEWEST_GROUPS)
        count = FEWEST_GROUPS;
    if (count > s->layer_count)
        count = s->layer_count;
    s->group_count = count;
    for (size_t i = 0; i < s->layer_count; i++) {
        struct group *group = &s->groups[i * count / s->layer_count];
        layer_set_add(&group->layers, s->layers[i]);
        group->saved_ms += s->survey->saved_ms[s->layers[i]];
    }
}

/* All are fp32 to begin with; one that could not be measured, or not finite, stays so. */
static enum status measure_groups(struct search *s, struct error *err)
{
    const size_t count = s->numbers * s->hard_count;
    for (size_t g = 0; g < s->group_count; g++) {
        struct group *group = &s->groups[g];
        group->is_fp32 = true;
        group->usable = false;
        if (out_of_time(s))
            continue;
        if (!group->shift)
            group->shift = alloc_array(s->numbers, HARD * sizeof(float));
        if (!group->shift)
            return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
        TRY(measure_shift(s, &group->layers, group->shift, err));
        group->usable = true;
        for (size_t k = 0; k < count; k++)
            group->usable = group->usable && isfinite(group->shift[k]);
    }
    memset(s->sum, 0, count * sizeof *s->sum);
    return STATUS_OK;
}

/* ---- selection ---- */

static void put(struct search *s, struct group *group, bool into_fp32)
{
    group->is_fp32 = into_fp32;
    for (size_t k = 0; k < s->numbers * s->hard_count; k++)
        s->sum[k] += into_fp32 ? -group->shift[k] : group->shift[k];
}

/* The group that mends most for the time it costs; NULL: none is left. */
static struct group *next_group(struct search *s, double amplify, double energy,
                                const struct group *spare)
{
    struct group *best = NULL;
    double best_value = -INFINITY;
    for (size_t g = 0; g < s->group_count; g++) {
        struct group *group = &s->groups[g];
        double without;
        if (group->is_fp32 || group == spare)
            continue;
        foretell(s, s->sum, group->shift, amplify, &without);
        const double value = (energy - without) / fmax(group->saved_ms, 1e-6);
        if (!best || value > best_value) {
            best = group;
            best_value = value;
        }
    }
    return best;
}

/* Mends until the forecast holds; false when no group is left for that. `spare` is not touched. */
static bool mend(struct search *s, double amplify, const struct group *spare)
{
    double energy;
    while (!(foretell(s, s->sum, NULL, amplify, &energy) <= 1)) {
        struct group *group = next_group(s, amplify, energy, spare);
        if (!group)
            return false;
        put(s, group, true);
    }
    return true;
}

static double saved_ms(const struct search *s)
{
    double saved = 0;
    for (size_t g = 0; g < s->group_count; g++)
        saved += s->groups[g].is_fp32 ? 0 : s->groups[g].saved_ms;
    return saved;
}

/* Makes the selection `wanted`: bit g is set where group g is fp32. Both bounds, since compilers
 * that see the shift, and not what sets the count, warn of group 64. */
static void restore(struct search *s, uint64_t wanted)
{
    for (size_t g = 0; g < s->group_count && g < MOST_GROUPS; g++)
        if (s->groups[g].is_fp32 != (wanted >> g & 1))
            put(s, &s->groups[g], wanted >> g & 1);
}

static uint64_t selection(const struct search *s)
{
    uint64_t fp32 = 0;
    for (size_t g = 0; g < s->group_count && g < MOST_GROUPS; g++)
        fp32 |= (uint64_t)s->groups[g].is_fp32 << g;
    return fp32;
}

/* The group that fp32 costs most, of those in `left`. */
static struct group *dearest(struct search *s, uint64_t left)
{
    struct group *best = NULL;
    for (size_t g = 0; g < s->group_count; g++) {
        struct group *group = &s->groups[g];
        if (left >> g & 1 && group->usable && (!best || group->saved_ms > best->saved_ms))
            best = group;
    }
    return best;
}

/* Exchanges: takes a dear group back into bfloat16 and mends what that breaks with others, as long
 * as time is gained. */
static void exchange(struct search *s, double amplify)
{
    for (uint64_t left = selection(s); left && !out_of_time(s);) {
        const uint64_t before = selection(s);
        const double saved = saved_ms(s);
        struct group *group = dearest(s, left & before);
        if (!group)
            return;
        left &= ~(UINT64_C(1) << (group - s->groups));
        put(s, group, false);
        if (!mend(s, amplify, group) || saved_ms(s) <= saved)
            restore(s, before);
    }
}

/* From all in bfloat16, puts groups into fp32 until the forecast holds, and then exchanges them;
 * false when hardly anything is gained by what is left. */
static bool select_groups(struct search *s, double amplify)
{
    for (size_t g = 0; g < s->group_count; g++)
        if (s->groups[g].usable && s->groups[g].is_fp32)
            put(s, &s->groups[g], false);
    if (!mend(s, amplify, NULL))
        return false;
    exchange(s, amplify);
    return s->survey->fp32_ms > GAIN * (s->survey->fp32_ms - saved_ms(s));
}

static struct layer_set selected(const struct search *s)
{
    struct layer_set narrow = {{0}};
    for (size_t g = 0; g < s->group_count; g++)
        for (int layer = 1; layer <= s->survey->layer_count && !s->groups[g].is_fp32; layer++)
            if (layer_set_has(&s->groups[g].layers, layer))
                layer_set_add(&narrow, layer);
    return all_but(s, &narrow);
}

/* ---- the search ---- */

/* The trial of a selection. Where it fails, the probes that it failed on are among the hard ones
 * from then on. */
static enum status try_selection(struct search *s, const struct layer_set *fp32,
                                 struct precision_trial *ret, struct error *err)
{
    struct survey *survey = calloc(1, sizeof *survey);
    if (!survey)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    const enum status status = trial_run(s->input, PRECISION_BF16, fp32, survey, ret, err);
    if (status == STATUS_OK && ret->outcome == TRIAL_DIFFERS)
        find_hard(s, survey->excess, HARD / 2);
    free(survey);
    return status;
}

/* Whether bfloat16 in all layers that gain by it would be clearly quicker than fp32. */
static bool is_worthwhile(const struct search *s)
{
    double saved = 0;
    for (size_t i = 0; i < s->layer_count; i++)
        saved += s->survey->saved_ms[s->layers[i]];
    return s->survey->fp32_ms > WORTH_A_SEARCH * (s->survey->fp32_ms - saved);
}

/* A trial runs all probes in fp32 and in less. */
static bool has_time_for_a_trial(const struct search *s)
{
    return trial_ms_left(s->input) > s->survey->fp32_ms * probes_count(s->input->probes);
}

static enum status search(struct search *s, struct precision_trial *ret, bool *ret_tried,
                          struct error *err)
{
    bool hope;
    TRY(prepare(s, err));
    if (s->hard_count == 0 || s->layer_count == 0 || !is_worthwhile(s))
        return STATUS_OK;
    const int64_t before = clock_now();
    TRY(look_for_hope(s, &hope, err));
    if (!hope)
        return STATUS_OK;
    const bool sampled = s->layer_count >= 2 * (size_t)FEWEST_GROUPS;
    form_groups(s, sampled ? clock_ms(clock_now() - before) : 0);
    TRY(measure_groups(s, err));
    double amplify = 1;
    for (int attempt = 0; attempt < MOST_ATTEMPTS && has_time_for_a_trial(s); attempt++) {
        if (!select_groups(s, amplify))
            break;
        const struct layer_set fp32 = selected(s);
        struct precision_trial trial; /* one that was broken off leaves the one before it */
        TRY(try_selection(s, &fp32, &trial, err));
        *ret = trial;
        *ret_tried = true;
        if (trial.outcome != TRIAL_DIFFERS || out_of_time(s))
            break;
        TRY(run_reference(s, err));
        TRY(measure_groups(s, err));
        amplify *= 1.15;
    }
    return STATUS_OK;
}

enum status search_layers(const struct trial_input *input, const struct survey *survey,
                          struct precision_trial *ret, bool *ret_tried, struct error *err)
{
    struct search *s = calloc(1, sizeof *s);
    *ret_tried = false;
    if (!s)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    s->input = input;
    s->survey = survey;
    const double left = SEARCH_SHARE * fmax(trial_ms_left(input), 0);
    s->end = clock_now() + (int64_t)(1e6 * fmin(input->end ? SEARCH_MS : UNBOUNDED_MS, left));
    const enum status status = search(s, ret, ret_tried, err);
    search_done(s);
    free(s);
    /* a selection that cannot be compiled or run leaves the choice as it is without it */
    return status == STATUS_CANCELLED ? status : STATUS_OK;
}
