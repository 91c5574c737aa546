/* What the scheduler decides, scenario by scenario: which images run together, why a batch closed,
 * whose turn it is, who is refused, which deadlines hold. schedule_script.h explains the language;
 * every expectation is exact. */
#include <criterion/criterion.h>

#include "engine/base/size.h"
#include "tests/unit/server/schedule/schedule_script.h"

/* Passes on a device whose 8 images have become nearly as fast as one. */
#define FOUR_SIZES "ran 0 8 12; ran 0 1 10; ran 0 2 20; ran 0 4 40;"

#define RUN(scenarios) run_scenarios(scenarios, COUNT_OF(scenarios))

Test(scenarios, work_conserving)
{
    static const struct scenario scenarios[] = {
        {"one image on an idle device runs at once",
         {FLAT, 8, 1},
         "idle 0; + a; @0.2; ready a; take 0 = a idle_device"},
        {"images gather while the device is busy, and all go together when it is free",
         {FLAT, 8, 1},
         "idle 0; + a; ready a; take 0 = a idle_device; + bcdefg; ready bcdefg; take 0 = -;"
         "@10; done 0; idle 0; take 0 = bcdefg idle_device"},
        {"a full batch closes by itself, what comes next is another batch",
         {FLAT, 4, 1},
         "+ abcde; ready abcde; idle 0; take 0 = abcd full; done 0; idle 0;"
         "take 0 = e idle_device"},
        {"a batch that a device waits for closes with the images that are still written",
         {FLAT, 8, 1},
         "+ abc; claim abc; slot ab; idle 0; commit b; take 0 = -; slot c; commit c;"
         "take 0 = -; commit a; take 0 = ab idle_device; done 0; idle 0; take 0 = c idle_device"},
        {"without measured times nothing is held and nothing is split",
         {UNKNOWN, 8, 1},
         "idle 0; + abcde; ready a; take 0 = a idle_device; ready bcde; done 0; idle 0;"
         "take 0 = bcde idle_device"},
        {"one after the other, as one client asks: never held",
         {FLAT, 8, 1},
         "idle 0; + a; ready a; take 0 = a idle_device; @10; done 0; idle 0;"
         "@10.3; + b; ready b; take 0 = b idle_device; @20.3; done 0; idle 0;"
         "@20.6; + c; ready c; take 0 = c idle_device; @30.6; done 0; idle 0;"
         "@30.9; + d; ready d; take 0 = d idle_device"},
    };
    RUN(scenarios);
}

Test(scenarios, sizes_follow_measured_times)
{
    static const struct scenario scenarios[] = {
        {"5 images padded to 8 where that is faster",
         {FLAT, 8, 1},
         "+ abcde; ready abcde; idle 0; take 0 = abcde idle_device"},
        {"5 images as 4 and 1 where that is",
         {LINEAR, 8, 1},
         "+ abcde; ready abcde; idle 0; take 0 = abcd full; @40; done 0; idle 0;"
         "take 0 = e full"},
        {"7 images as 4, 2 and 1",
         {LINEAR, 8, 1},
         "+ abcdefg; ready abcdefg; idle 0; take 0 = abcd full; done 0; idle 0;"
         "take 0 = ef full; done 0; idle 0; take 0 = g full"},
        {"a full batch as two halves, where the whole takes longer than both",
         {BENT, 8, 1},
         "+ abcdefgh; ready abcdefgh; idle 0; take 0 = abcd full; done 0; idle 0;"
         "take 0 = efgh full"},
        {"3 images padded to 4 beside another way to split 7",
         {BENT, 8, 1},
         "+ abcdefg; ready abcdefg; idle 0; take 0 = abcd full; done 0; idle 0;"
         "take 0 = efg full"},
        {"what is left of a split is there for another lane at once",
         {LINEAR, 8, 2},
         "+ abcde; ready abcde; idle 0; idle 1; take 0 = abcd full;"
         "take 1 = e full"},
        {"it goes before what has been prepared since",
         {LINEAR, 8, 1, .workers = 1},
         "+ abcde; ready abcde; idle 0; take 0 = abcd full; + f; ready f; done 0; idle 0;"
         "take 0 = e full; done 0; idle 0; take 0 = f full"},
        {"a batch is full where more images gain nothing, and tickets are as few",
         {LINEAR, 8, 1, .workers = 1},
         "idle 0; + a; ready a; take 0 = a full; + bcd; tickets = 2; ready bc; done 0;"
         "idle 0; take 0 = b full; done 0; idle 0; take 0 = c full; tickets = 1; ready d"},
        {"a batch is full at the size that is best",
         {BENT, 8, 1, .workers = 1},
         "idle 0; + a; ready a; take 0 = a idle_device; + bcdef; ready bcdef; done 0; idle 0;"
         "take 0 = bcde full; done 0; idle 0; take 0 = f idle_device"},
        {"passes that were measured since change the sizes",
         {LINEAR, 8, 1},
         FOUR_SIZES FOUR_SIZES FOUR_SIZES FOUR_SIZES FOUR_SIZES FOUR_SIZES FOUR_SIZES FOUR_SIZES
         "+ abcde; ready abcde; idle 0; take 0 = abcde idle_device"},
        {"a slow phase of the whole machine does not",
         {LINEAR, 8, 1},
         "ran 0 1 40; ran 0 1 40; ran 0 1 40; ran 0 1 40; ran 0 1 40; ran 0 1 40; ran 0 1 40;"
         "ran 0 1 40; + abcdefgh; ready abcdefgh; idle 0; take 0 = abcdefgh full"},
        {"a split with a gap in it is run whole up to the gap's end",
         {LINEAR, 8, 1},
         "+ abcdef; claim abcdef; slot abcdef; commit abdef; idle 0; abandon c;"
         "take 0 = abde full; done 0; idle 0; take 0 = f full"},
    };
    RUN(scenarios);
}

Test(scenarios, priorities)
{
    static const struct scenario scenarios[] = {
        {"in order of arrival, where nothing is said",
         {FLAT, 8, 1},
         "+ a; @1; + b; @2; + c; claim abc"},
        {"the urgent go first, the others keep their order",
         {FLAT, 8, 1},
         "+ ab; + c u8; + d u1; + e u1; + f u2; claim defabc"},
        {"0 is the default, between 3 and 5",
         {FLAT, 8, 1},
         "+ a u5; + b u0; + c u4; + d u3; claim dbca"},
        {"250 ms of waiting weigh as much as a step",
         {FLAT, 8, 1},
         "+ a u4; @249; + b u3; @249.5; claim b; @251; + c u3; claim ac"},
        {"the least urgent is not starved by a stream of the most urgent",
         {FLAT, 8, 1},
         "+ a u8; @1000; + b u1; claim b; @1700; + c u1; claim c; @1751; + d u1; claim ad"},
        {"an aged image does not wait for its client's turn among the urgent",
         {FLAT, 8, 1},
         "+ a c1 u4; @900; + bcd c2 u1; claim abcd"},
    };
    RUN(scenarios);
}

Test(scenarios, fairness)
{
    static const struct scenario scenarios[] = {
        {"in order of arrival among clients that ask for about the same",
         {FLAT, 8, 1},
         "+ ab c1; + c c2; + d c1; + ef c3; + g c2; claim abcdefg"},
        {"with more than its share in the queue a client waits for the others' turns",
         {FLAT, 8, 1},
         "+ abcdefgh c1; + xy c2; + z c3; claim axzbycdefgh"},
        {"and no more when it has its share",
         {FLAT, 8, 1},
         "+ abcdefgh c1; + yz c2; claim ay; gone bcdef; claim ghz"},
        {"one who comes late goes before the next turn of the one whose turn was last",
         {FLAT, 8, 1},
         "+ abcdefgh c1; claim ab; @5; + x c2; + y c3; claim xycdefgh"},
        {"after its own turn it waits for the others'",
         {FLAT, 8, 1},
         "+ abcdefgh c1; claim a; + x c2; claim x; + y c2; claim by; + z c2; claim cz; claim d"},
        {"the one whose turn was last has left: turns in order of arrival",
         {FLAT, 8, 1},
         "+ abcdefgh c1; claim a; gone bcdefgh; + ijklmnop c3; + x c2; claim ixj"},
        {"a single image beside sixty",
         {FLAT, 8, 1},
         "+ abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345 c1; + 9 c2; claim a9b"},
        {"asking again and again one by one gains nothing",
         {FLAT, 8, 1},
         "+ abcdefgh c1; + x c2; claim ax; + y c2; claim by; + z c2; claim cz; claim d"},
        {"turns within each priority",
         {FLAT, 8, 1},
         "+ abcdkm c1 u1; + efghln c2; + i c3 u1; + j c1; claim aibcdkmejfghln"},
        {"one who leaves in the middle gives the turn to the next",
         {FLAT, 8, 1},
         "+ abcdefghi c1; + x c2; + yz c3; gone x; claim aybzc"},
        {"nobody in particular is a client like the others",
         {FLAT, 8, 1},
         "+ abcdef; + x c2; claim axbc"},
    };
    RUN(scenarios);
}

Test(scenarios, admission)
{
    static const struct scenario scenarios[] = {
        {"all images of a request, or none",
         {FLAT, 8, 1, 10},
         "ask abcdef = ok; ask ghijk = overloaded; in = 6; ask ghij = ok; in = 10;"
         "ask k = overloaded in 1"},
        {"more images than the bound can never come in",
         {FLAT, 8, 1, 4},
         "ask abcde = too_large; in = 0"},
        {"an answer makes room",
         {FLAT, 2, 1, 2},
         "idle 0; ask ab = ok; ask c = overloaded; ready ab; take 0 = ab full;"
         "ask c = overloaded; done 0; ask c = ok"},
        {"the last eighth is for those who have little in the queue",
         {FLAT, 8, 1, 16},
         "ask abcdefghijklmn c1 = ok; ask o c1 = overloaded; ask p c2 = ok; ask q c2 = ok;"
         "ask r c3 = overloaded"},
        {"a deadline behind the queue: 20 images are 3 passes of 12 ms",
         {FLAT, 8, 1},
         "ask abcdefghijklmnopqrst = ok; ask u d35 = overloaded in 1; ask u d36 = ok"},
        {"an idle device, and a deadline that any pass would miss",
         {FLAT, 8, 1},
         "idle 0; @5; ask a d14.9 = overloaded; ask a d15 = ok"},
        {"what runs now counts, as far as it is left",
         {FLAT, 1, 1},
         "idle 0; ask a = ok; ready a; take 0 = a full; @4; ask b d19.9 = overloaded;"
         "ask b d20 = ok"},
        {"two devices take half the time",
         {LINEAR, 1, 2},
         "ask abcd = ok; ask e d29 = overloaded; ask e d30 = ok"},
        {"a quarantined device does not count",
         {LINEAR, 1, 2},
         "idle 0; idle 1; away 1; ask abcd = ok; ask e d49 = overloaded; ask e d50 = ok"},
        {"an urgent request is not refused for the queue behind it",
         {LINEAR, 1, 1},
         "ask abcdefgh = ok; ask i d50 = overloaded; ask i u1 d50 = ok"},
        {"nor a client with nothing in the queue for another's flood",
         {LINEAR, 1, 1},
         "ask abcdefgh c1 = ok; ask z c3 = ok; ask i c1 d50 = overloaded; ask i c2 d50 = ok"},
        {"a deadline that is over already",
         {FLAT, 8, 1},
         "@10; ask a d10 = deadline_exceeded; ask a d3 = deadline_exceeded"},
        {"a bound in milliseconds",
         {LINEAR, 1, 1, 0, 0, 30},
         "ask a = ok; ask b = ok; ask c = ok; ask d = overloaded in 1"},
        {"a bound in bytes, which what has been claimed frees",
         {FLAT, 8, 1, 0, 1000},
         "ask a b600 = ok; ask b b500 = overloaded; ask b b1001 = too_large; claim a;"
         "ask b b500 = ok"},
        {"workers that are slower than the device set the prediction",
         {FLAT, 8, 1, 0, 0, 0, 2},
         "ask a = ok; claim a; @20; slot a; commit a; ask bcde = ok; ask f d91.9 = overloaded;"
         "ask f d92 = ok"},
        {"Retry-After is the time until the queue is done",
         {LINEAR, 8, 1, 60},
         "@1; ask abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567 = ok;"
         "ask 8 = overloaded in 1"},
        {"answers that take longer than foreseen make predictions longer",
         {LINEAR, 1, 1, 16},
         "idle 0; ask abc = ok; ready a; take 0 = a full; @60; done 0; idle 0; ready b;"
         "take 0 = b full; @70; done 0; idle 0; ask d d89 = overloaded; ask d d400 = ok"},
    };
    RUN(scenarios);
}

Test(scenarios, cancellation)
{
    static const struct scenario scenarios[] = {
        {"who hangs up in the queue makes room at once",
         {FLAT, 1, 1, 4},
         "ask abcd = ok; ask e = overloaded; gone bc; in = 2; ask ef = ok; claim ade"},
        {"what has been claimed is not in the queue any more",
         {FLAT, 8, 1},
         "+ ab; claim a; gone a = no; gone b; gone b = no; drop a; in = 0"},
        {"a ticket whose image has left finds the next one, or none",
         {FLAT, 8, 1},
         "+ abc; tickets = 3; gone a; claim b; gone c; in = 1"},
        {"one that left in its slot leaves a gap, its neighbours run",
         {FLAT, 4, 1},
         "+ abcd; claim abcd; slot abcd; commit acd; abandon b; idle 0; take 0 = acd full;"
         "done 0; in = 0"},
        {"all of them: the slots are free again",
         {FLAT, 2, 1},
         "idle 0; + ab; claim ab; slot ab; abandon ab; in = 0; + cd; ready cd; take 0 = cd full"},
    };
    RUN(scenarios);
}

Test(scenarios, lanes)
{
    static const struct scenario scenarios[] = {
        {"two lanes pull from one queue",
         {FLAT, 2, 2},
         "idle 0; idle 1; + a; ready a; take 0 = a idle_device; + b; ready b;"
         "take 1 = b idle_device; + cde; ready cde; done 1; idle 1; take 1 = cd full; done 0;"
         "idle 0; take 0 = e idle_device"},
        {"a request of many images is split across them",
         {FLAT, 4, 2},
         "+ abcdefgh; ready abcdefgh; idle 0; idle 1; take 1 = abcd full; take 0 = efgh full"},
        {"what a lane gives back goes first, to another",
         {FLAT, 4, 2},
         "+ abcdef; ready abcdef; idle 0; take 0 = abcd full; + g; ready g; back 0 abcd; idle 1;"
         "take 1 = abcd full; done 1; idle 1; take 1 = efg idle_device"},
        {"without what has been answered meanwhile",
         {FLAT, 4, 2},
         "+ abcd; ready abcd; idle 0; take 0 = abcd full; back 0 bd; in = 2; idle 1;"
         "take 1 = bd full; done 1; in = 0"},
        {"nothing at all",
         {FLAT, 4, 2},
         "+ abcd; ready abcd; idle 0; take 0 = abcd full; back 0; in = 0; + ef; ready ef;"
         "idle 1; take 1 = ef idle_device"},
        {"a micro-batch comes back beside the one that runs",
         {LINEAR, 8, 3},
         "+ abcdef; ready abcdef; idle 0; idle 1; take 0 = abcd full;"
         "take 1 = ef full; back 1 ef; idle 2; take 2 = ef full; done 0; done 2;"
         "in = 0"},
        {"a quarantined lane leaves its share to the other",
         {FLAT, 4, 2},
         "idle 0; idle 1; away 0; + a; ready a; take 0 = -; take 1 = a idle_device"},
        {"and has work again when it comes back",
         {FLAT, 4, 2},
         "away 0; + a; ready a; idle 0; take 0 = a idle_device"},
    };
    RUN(scenarios);
}

Test(scenarios, tickets_and_the_end)
{
    static const struct scenario scenarios[] = {
        {"no more are prepared than there are slots for",
         {FLAT, 2, 1},
         "+ abcdefghij; tickets = 5; claim abcde; tickets = 0"},
        {"a batch that has run makes room for more",
         {FLAT, 2, 1},
         "idle 0; + abcdefghij; ready ab; take 0 = ab full; tickets = 4; claim cdef; claim -;"
         "done 0; tickets = 1"},
        {"where batches gain nothing and no lane had to wait: only what the next pass takes",
         {LINEAR, 8, 1},
         "idle 0; + a; ready a; take 0 = a full; + bcdefgh; tickets = 1; ready b; tickets = 0; "
         "done 0;"
         "idle 0; take 0 = b full; tickets = 1"},
        {"where batches gain nothing: one for the next pass, and one early",
         {LINEAR, 8, 1, .workers = 1},
         "idle 0; + abcdefgh; claim ab; claim -; slot a; commit a; take 0 = a full; tickets = 1;"
         "slot b; commit b; claim c; claim -; @10; done 0; idle 0; take 0 = b full; tickets = 1"},
        {"one more early after a lane had to wait for its image",
         {LINEAR, 8, 1, .workers = 1},
         "idle 0; + abcdefgh; ready a; take 0 = a full; @10; done 0; idle 0; take 0 = -; claim b;"
         "@12; slot b; commit b; take 0 = b full; @22; done 0; idle 0; tickets = 3"},
        {"not after it had to wait for a client",
         {LINEAR, 8, 1, .workers = 1},
         "idle 0; + a; ready a; take 0 = a full; @10; done 0; idle 0; @12; + b; ready b;"
         "take 0 = b full; + cdefgh; @22; done 0; idle 0; tickets = 2"},
        {"large images that are prepared for long do not count",
         {LINEAR, 8, 1, .workers = 1},
         "idle 0; + xy l1; @1; + bcdefgh; claim xy; tickets = 1"},
        {"where batches gain, as many as there are slots for",
         {FLAT, 8, 1, .workers = 1},
         "idle 0; + abcdefghijklmno; tickets = 15"},
        {"images that do not decode give their place to others",
         {FLAT, 1, 1},
         "+ abcdef; tickets = 3; claim abc; drop ab; tickets = 2; claim de"},
    };
    RUN(scenarios);
}
