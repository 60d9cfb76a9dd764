/* The lines of mountinfo:
 *
 *     36 35 98:0 / /mnt/a\040b rw,nosuid - fuse.keelfs keelfs:c/n1 rw,user_id=0
 *     id    dev  mount point       optional fields end with "-"; type, source */
#include "mountinfo.h"

#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

/* "\040" and its like, in place. */
static void unescape(char *s)
{
    char *to = s;

    while (*s != '\0') {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 4;
        } else {
            *to++ = *s++;
        }
    }
    *to = '\0';
}

static bool keep(char *ret, size_t size, char *field)
{
    unescape(field);
    return (size_t)snprintf(ret, size, "%s", field) < size;
}

static bool parse(char *line, struct mountinfo *info)
{
    char *save = NULL, *field[6], *next;
    unsigned major, minor;

    for (size_t i = 0; i < 6; i++)
        if ((field[i] = strtok_r(i == 0 ? line : NULL, " \n", &save)) == NULL)
            return false;
    if (sscanf(field[0], "%u", &info->id) != 1 || sscanf(field[2], "%u:%u", &major, &minor) != 2)
        return false;
    info->dev = makedev(major, minor);
    do {
        next = strtok_r(NULL, " \n", &save);
    } while (next != NULL && strcmp(next, "-") != 0);
    if (next == NULL || strtok_r(NULL, " \n", &save) == NULL ||
        (next = strtok_r(NULL, " \n", &save)) == NULL)
        return false;
    return keep(info->point, sizeof info->point, field[4]) &&
           keep(info->source, sizeof info->source, next);
}

int mountinfo_each(FILE *table, int (*fn)(void *arg, const struct mountinfo *info), void *arg)
{
    FILE *own = table == NULL ? fopen("/proc/self/mountinfo", "re") : NULL;
    struct mountinfo info;
    char *line = NULL;
    size_t size = 0;
    int result = 0;

    if (table == NULL && (table = own) == NULL)
        return 0;
    while (result == 0 && getline(&line, &size, table) > 0)
        if (parse(line, &info))
            result = fn(arg, &info);
    free(line);
    if (own != NULL)
        fclose(own);
    return result;
}

struct search {
    const char *point;
    struct mountinfo *found;
    bool any;
};

static int look_at(void *arg, const struct mountinfo *info)
{
    struct search *search = arg;

    if (strcmp(info->point, search->point) == 0) {
        *search->found = *info;
        search->any = true; /* later ones lie on top */
    }
    return 0;
}

bool mountinfo_find(FILE *table, const char *mount_point, struct mountinfo *ret_info)
{
    struct search search = { .point = mount_point, .found = ret_info };

    mountinfo_each(table, look_at, &search);
    return search.any;
}
