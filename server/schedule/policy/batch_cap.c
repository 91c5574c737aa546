/* Lowers the largest batch of a lane when memory runs out, and raises it again step by step. */
#include "server/schedule/policy/batch_cap.h"

#include <assert.h>

#define FIRST_PATIENCE INT64_C(1000000000)
#define MOST_PATIENCE  (64 * FIRST_PATIENCE)

struct batch_cap batch_cap_begin(int most)
{
    assert(most >= 1);
    return (struct batch_cap){
        .most = most, .cap = most, .patience = FIRST_PATIENCE, .next_event = INT64_MAX};
}

int batch_cap_now(struct batch_cap *cap, int64_t now)
{
    if (now < cap->next_event)
        return cap->cap;
    if (cap->cap < cap->most) {
        cap->cap = cap->cap <= cap->most / 2 ? 2 * cap->cap : cap->most;
        cap->has_risen = true;
        cap->next_event = now + cap->patience;
    } else { /* the cap has been at its maximum for a full period */
        cap->patience = FIRST_PATIENCE;
        cap->has_risen = false;
        cap->next_event = INT64_MAX;
    }
    return cap->cap;
}

void batch_cap_lower(struct batch_cap *cap, int fits, int64_t now)
{
    assert(fits >= 1 && fits <= cap->most);
    if (cap->has_risen && cap->patience < MOST_PATIENCE)
        cap->patience *= 2;
    cap->has_risen = false;
    if (fits < cap->cap)
        cap->cap = fits;
    cap->next_event = now + cap->patience;
}
