/* Multiply-adds of arm64. */
#include "engine/cpu/peak_probe.h"

#include <arm_neon.h>

enum { SUMS = 12 };

/* Each sum is a variable, because an array of sums would live in memory. */
#define EACH_SUM(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(n)  float32x4_t s##n = vdupq_n_f32((float)(n));
#define FMA(n)      s##n = vfmaq_f32(b, s##n, a);
#define FIRST(n)    total += vgetq_lane_f32(s##n, 0);

static float probe_neon(long count)
{
    const float32x4_t a = vdupq_n_f32(0.999f), b = vdupq_n_f32(1e-3f);
    EACH_SUM(DECLARE)
    for (long i = 0; i < count; i++) {
        EACH_SUM(FMA)
    }
    float total = 0;
    EACH_SUM(FIRST)
    return total;
}

struct peak_probe peak_probe_pick(enum precision precision)
{
    (void)precision;
    return (struct peak_probe){probe_neon, SUMS * 4.0 * 2, "NEON FMA"};
}
