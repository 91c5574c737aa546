/* A choice of precision in words: the names of its parts, and its reason for people. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/precision/internal.h"

const char *choice_origin_name(enum choice_origin origin)
{
    static const char *const names[] = {[CHOICE_PINNED] = "pinned",
                                        [CHOICE_ONLY] = "only",
                                        [CHOICE_MEASURED] = "measured",
                                        [CHOICE_CACHED] = "cached",
                                        [CHOICE_PENDING] = "pending"};
    return names[origin];
}

const char *trial_outcome_name(enum trial_outcome outcome)
{
    static const char *const names[] = {[TRIAL_PASSED] = "passed",
                                        [TRIAL_SLOWER] = "slower",
                                        [TRIAL_DIFFERS] = "differs",
                                        [TRIAL_FAILED] = "failed",
                                        [TRIAL_COSTLY] = "costly"};
    return names[outcome];
}

const struct precision_trial *precision_chosen_trial(const struct precision_choice *choice)
{
    for (size_t i = 0; i < choice->trial_count; i++)
        if (choice->trials[i].precision == choice->precision &&
            choice->trials[i].outcome == TRIAL_PASSED)
            return &choice->trials[i];
    return NULL;
}

static void say(struct precision_choice *choice, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct precision_choice *choice, const char *format, ...)
{
    va_list args;
    const size_t used = strlen(choice->why);
    va_start(args, format);
    vsnprintf(choice->why + used, sizeof choice->why - used, format, args);
    va_end(args);
}

static void say_agreement(struct precision_choice *choice, const struct precision_trial *trial)
{
    const struct agreement *a = &trial->agreement;
    if (!isfinite(a->mean)) {
        say(choice, "some of its numbers are not finite");
        return;
    }
    if (a->clear > 0)
        say(choice, "%zu of %zu clear best classes agree, ", a->agreeing, a->clear);
    if (a->is_vector)
        say(choice, "the best class's probability changes by %.4f in the mean, correlation %.5f",
            a->mean, a->correlation);
    else
        say(choice, "relative error %.4f", a->mean);
    say(choice, ", %d images", a->images);
}

static void say_bounds(struct precision_choice *choice, const struct agreement *a)
{
    say(choice, " (needed: %g %% of the classes, %s of at most %g with 95 %% confidence",
        100 * AGREEMENT_SHARE, a->is_vector ? "a change" : "an error",
        a->is_vector ? AGREEMENT_PROBABILITY : AGREEMENT_RELATIVE);
    if (agreement_needs_correlation(a) && a->mean <= AGREEMENT_PROBABILITY)
        say(choice, ", a correlation of %g", 1 - AGREEMENT_VECTOR);
    say(choice, ")");
}

static void say_trial(struct precision_choice *choice, const struct precision_trial *trial)
{
    char name[80];
    const bool is_made = trial->precision == PRECISION_INT8 && choice->calibrated > 0;
    snprintf(name, sizeof name, is_made ? "%s (calibrated with %d photos of calibration/)" : "%s",
             precision_name(trial->precision), choice->calibrated);
    if (choice->why[0])
        say(choice, "; ");
    switch (trial->outcome) {
    case TRIAL_PASSED:
        say(choice, "%s is %.2f times as fast as fp32: ", name, trial->speed);
        say_agreement(choice, trial);
        break;
    case TRIAL_SLOWER:
        say(choice, "%s does not pay: it is %.2f times as fast as fp32, and %g is asked for", name,
            trial->speed, PRECISION_GAIN);
        break;
    case TRIAL_DIFFERS:
        say(choice, "%s is %.2f times as fast as fp32 but answers differently: ", name,
            trial->speed);
        say_agreement(choice, trial);
        say_bounds(choice, &trial->agreement);
        say(choice, ", --precision %s takes it all the same", precision_name(trial->precision));
        break;
    case TRIAL_FAILED:
        say(choice, "%s cannot run this model", name);
        break;
    case TRIAL_COSTLY:
        say(choice,
            "%s was not compared to the end: a quarter of the load's time and a second were spent",
            name);
        break;
    }
}

void choice_explain(struct precision_choice *choice)
{
    const struct precision_trial *taken = precision_chosen_trial(choice);
    choice->why[0] = '\0';
    if (taken)
        say_trial(choice, taken);
    for (size_t i = 0; i < choice->trial_count; i++)
        if (&choice->trials[i] != taken)
            say_trial(choice, &choice->trials[i]);
}
