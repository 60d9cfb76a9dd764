/* An intrusive doubly linked list with a sentinel: the head is a link that points to itself when
 * empty. */
#ifndef KEEL_LIST_H
#define KEEL_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct keel_link {
    struct keel_link *next, *prev;
};

static inline void keel_list_init(struct keel_link *head)
{
    head->next = head->prev = head;
}

static inline bool keel_list_empty(const struct keel_link *head)
{
    return head->next == head;
}

/* At the end. */
static inline void keel_list_add(struct keel_link *head, struct keel_link *link)
{
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

static inline void keel_list_remove(struct keel_link *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->next = link->prev = link;
}

/* The first, or NULL. */
static inline struct keel_link *keel_list_first(const struct keel_link *head)
{
    return keel_list_empty(head) ? NULL : head->next;
}

/* Moves everything from one list to the end of another. */
static inline void keel_list_splice(struct keel_link *to, struct keel_link *from)
{
    if (keel_list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    keel_list_init(from);
}

#endif
