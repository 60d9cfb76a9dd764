/* The lines of mountinfo:
 *
 *     36 35 98:0 / /mnt/a\040b rw,nosuid - fuse.keelfs keelfs:c/n1 rw,user_id=0
 *           dev  mount point       optional fields end with "-"; type, source */
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "fs/mountinfo.h"

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

static bool parse(char *line, const char *mount_point, struct mountinfo *info)
{
    char *save = NULL, *field[6], *next;
    unsigned major, minor;

    for (size_t i = 0; i < 6; i++)
        if ((field[i] = strtok_r(i == 0 ? line : NULL, " \n", &save)) == NULL)
            return false;
    unescape(field[4]);
    if (strcmp(field[4], mount_point) != 0 || sscanf(field[2], "%u:%u", &major, &minor) != 2)
        return false;
    do {
        next = strtok_r(NULL, " \n", &save);
    } while (next != NULL && strcmp(next, "-") != 0);
    if (next == NULL || strtok_r(NULL, " \n", &save) == NULL ||
        (next = strtok_r(NULL, " \n", &save)) == NULL)
        return false;
    unescape(next);
    info->dev = makedev(major, minor);
    snprintf(info->source, sizeof info->source, "%s", next);
    return true;
}

bool mountinfo_find(FILE *table, const char *mount_point, struct mountinfo *ret_info)
{
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    while (getline(&line, &size, table) > 0)
        found |= parse(line, mount_point, ret_info); /* later ones lie on top */
    free(line);
    return found;
}
