/* How many times as fast as a baseline a candidate is, on a machine that may be busy.
 *
 * They take turns, so that a machine that changes its pace disturbs both alike, and the ratio of a
 * turn counts; who begins changes from turn to turn. In a turn in which other work had the cores
 * (a run took more than DISTURBED times its CPU time) the CPU time counts, on both sides.
 *
 * The gain is the median of the ratios. Turns end as soon as the verdict stands: when LEAD more of
 * them were on one side of the bound than on the other. A candidate that truly is within a few
 * per cent of the bound takes MOST_TURNS and may fall on either side; one that is clearly above or
 * below takes LEAD turns, and chance decides less than once in a thousand starts even where one
 * turn in five is wrong: (0.2 / 0.8)^5. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "server/precision/internal.h"

enum { LEAD = 5 };

#define DISTURBED 1.25

static bool is_disturbed(const struct run_time *time)
{
    return time->ms > DISTURBED * time->cpu_ms;
}

double speed_ratio(const struct run_time *baseline, const struct run_time *candidate)
{
    const bool by_cpu = baseline->cpu_ms > 0 && candidate->cpu_ms > 0 &&
                        (is_disturbed(baseline) || is_disturbed(candidate));
    const double a = by_cpu ? baseline->cpu_ms : baseline->ms;
    const double b = by_cpu ? candidate->cpu_ms : candidate->ms;
    return b > 0 ? a / b : 1;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double speed_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

enum status speed_compare(const struct speed_contest *contest, double *ret, struct error *err)
{
    double ratios[SPEED_MOST_TURNS];
    const int64_t begin = clock_now();
    int above = 0;
    size_t turn = 0;
    while (turn < SPEED_MOST_TURNS && abs(above) < LEAD &&
           (turn == 0 || (clock_ms(clock_now() - begin) < contest->budget_ms &&
                          !(contest->is_settled && *contest->is_settled)))) {
        struct run_time times[2];
        for (size_t k = 0; k < 2; k++) {
            const size_t side = (k + turn) % 2;
            TRY(contest->time(contest->context, side, &times[side], err));
        }
        ratios[turn] = speed_ratio(&times[0], &times[1]);
        above += ratios[turn++] >= contest->bound ? 1 : -1;
    }
    *ret = speed_median(ratios, turn);
    return STATUS_OK;
}
