/* A list of exchanges and two flags, with an eventfd to wake the thread that reads them. */
#include "server/http/transport/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/thread.h"
#include "server/http/transport/exchange.h"

bool inbox_init(struct inbox *inbox, bool accepts)
{
    *inbox = (struct inbox){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .accepts = accepts};
    pthread_mutex_init(&inbox->lock, NULL);
    return inbox->fd >= 0;
}

void inbox_done(struct inbox *inbox)
{
    if (inbox->fd >= 0)
        close(inbox->fd);
    pthread_mutex_destroy(&inbox->lock);
}

void inbox_wake_locked(struct inbox *inbox)
{
    if (!inbox->is_woken)
        (void)eventfd_write(inbox->fd, 1);
    inbox->is_woken = true;
}

void exchange_resume(struct exchange *x)
{
    struct inbox *inbox = x->inbox;
    LOCK(&inbox->lock);
    x->next_resumed = inbox->resumed;
    inbox->resumed = x;
    inbox_wake_locked(inbox);
}

void inbox_set(struct inbox *inbox, bool *flag, bool value)
{
    LOCK(&inbox->lock);
    *flag = value;
    inbox_wake_locked(inbox);
}

bool inbox_take(struct inbox *inbox, struct exchange **ret_resumed, bool *ret_accepts)
{
    eventfd_t wakes;
    LOCK(&inbox->lock);
    if (inbox->is_woken)
        (void)eventfd_read(inbox->fd, &wakes);
    inbox->is_woken = false;
    *ret_resumed = inbox->resumed;
    inbox->resumed = NULL;
    *ret_accepts = inbox->accepts;
    const bool stop = inbox->stop;
    return !stop;
}
